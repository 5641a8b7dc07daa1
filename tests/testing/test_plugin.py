"""The pytest plugin, and the cost of importing the test kit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import flow
from penstock.testing import FakeClock, TestApp

TESTS = """
from pathlib import Path
from penstock import flow

@flow("greet")
async def greet(who):
    return f"hello {who}"

async def test_greet(penstock_app):
    app = await penstock_app(greet)
    run = await app.run_flow(greet, WHO)
    await app.assert_history(run.id, Path(__file__).parent / "greet.json")
"""


@flow("greet")
async def greet(who: str) -> str:
    return f"hello {who}"


@pytest.fixture
def made() -> Iterator[list[TestApp]]:
    """Collect Apps, and check after the test that the plugin has closed them."""
    apps: list[TestApp] = []
    yield apps
    assert apps
    assert not any(app._is_open for app in apps)


async def test_apps_of_a_test_share_a_clock_and_are_closed(
    made: list[TestApp], penstock_app: Callable[..., Any], penstock_clock: FakeClock
) -> None:
    app, other = await penstock_app(greet), await penstock_app(greet, lease="5s")
    made += [app, other]
    assert (await app.run_flow(greet, "you")).result == "hello you"
    assert (await other.run_flow("greet", "me")).result == "hello me"
    assert app.time is other.time is penstock_clock
    assert other.settings.lease == 5000
    assert app._is_open


async def test_apps_from_a_folder(penstock_app: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "hi.py").write_text("from penstock import flow\n\n@flow('hi')\ndef hi():\n    return 1\n")
    app = await penstock_app(dir=tmp_path)
    assert (await app.run_flow("hi")).result == 1


def pytest_in(place: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args, str(place)]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_histories_are_saved_compared_and_updated(tmp_path: Path, mode: str) -> None:
    mark = "" if mode == "auto" else "\nimport pytest\npytestmark = pytest.mark.asyncio\n"
    test, args = tmp_path / "test_greet.py", (f"--asyncio-mode={mode}",)

    def write(who: str) -> None:
        test.write_text(mark + TESTS.replace("WHO", repr(who)))

    write("you")
    assert pytest_in(tmp_path, *args).returncode == 0
    assert "hello you" in (tmp_path / "greet.json").read_text()
    write("me")
    done = pytest_in(tmp_path, *args)
    assert done.returncode == 1
    assert "If the new history is right: pytest --penstock-update" in done.stdout
    if mode == "strict":  # the rest does not depend on the mode
        return
    assert pytest_in(tmp_path, *args, "--penstock-update").returncode == 0
    assert "hello me" in (tmp_path / "greet.json").read_text()
    assert pytest_in(tmp_path, *args).returncode == 0


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_penstock_testing_does_not_need_pytest() -> None:
    code = "from penstock.testing import *; import sys; print('pytest' in sys.modules, TestApp, FakeContext, until)"
    assert python(code).startswith("False <class 'penstock.testing.test_app.TestApp'>")
    assert "function until" in python(code)
    assert python("import penstock.testing as t; print(set(t.__all__) <= set(dir(t)))") == "True"
    assert "no attribute 'nope'" in python(
        "import penstock.testing as t\ntry: t.nope\nexcept AttributeError as e: print(e)"
    )


def test_the_plugin_loads_nothing_of_the_engine() -> None:
    heavy = ("apsw", "msgspec", "penstock.app")
    code = f"import penstock.testing.plugin, sys; print([name for name in {heavy} if name in sys.modules])"
    assert python(code) == "[]"
