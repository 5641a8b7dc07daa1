"""`penstock dev` reloads changed files without dropping running jobs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import file_watch
from penstock.testing.until import until

VERSION = """
from penstock import flow

@flow("which", queue="{queue}")
def which(input):
    return "{version}"
"""
# Runs until a file named `gate` exists, then reads a module next to it: old code reads the old module.
HOLDS = """
import asyncio
from pathlib import Path
from penstock import flow
import words

@flow("holds")
async def holds(input):
    Path("began").touch()
    while not Path("gate").exists():
        await asyncio.sleep(0.01)
    return ["{version}", words.WORD]
"""


def put(path: Path, text: str) -> None:
    """Write a file in one piece: one seen half-written would be reloaded twice."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)


class Dev:
    """`penstock dev` in a process of its own."""

    def __init__(self, child: Callable, project: Path) -> None:
        self._child = child("dev", "--json")
        self._workers = project / "workers"
        assert json.loads(self._next())["watching"] == "workers"

    def change(self, name: str, text: str) -> dict:
        """Write a file and wait until it is reloaded."""
        put(self._workers / name, text)
        return self.reloaded()

    def remove(self, name: str) -> dict:
        (self._workers / name).unlink()
        return self.reloaded()

    def reloaded(self) -> dict:
        return json.loads(self._next())

    def end(self) -> str:
        self._child.signal(signal.SIGTERM)
        answer = self._child.end()
        assert answer.code == 0
        assert "Traceback" not in answer.err
        return answer.err

    def _next(self) -> str:
        line = self._child.process.stdout.readline()
        assert line, self._child.end()
        return line


@pytest.fixture(params=["notified", "polling"])
def dev(request: pytest.FixtureRequest, child: Callable, project: Path, monkeypatch: pytest.MonkeyPatch) -> Dev:
    if request.param == "polling":
        # Shadows the installed module with one that cannot be imported.
        (project / "watchfiles.py").write_text("raise ImportError('not installed')\n")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project), os.environ.get("PYTHONPATH", "")]))
    else:
        pytest.importorskip("watchfiles")
    put(project / "workers" / "which.py", VERSION.format(queue="which", version="one"))
    return Dev(child, project)


def result(penstock: Callable, flow: str, key: str) -> object:
    """Start a run for the worker and return its result once it has ended."""
    assert penstock("start", flow, "--key", key).code == 0
    penstock("tail", key)
    return penstock("runs", "show", key, "--json").json["result"]


def test_typescript_files_and_what_they_import_are_reloaded(child: Callable, penstock: Callable, project: Path) -> None:
    """A syntax error is shown, and the next version is loaded when it is gone."""
    text = "import {{ v }} from './_lib'\nexport const config = {{ flow: {{ id: 'script', role: 'main' }} }}\nexport default async () => v{}\n"
    put(project / "workers" / "script.ts", text.format(""))
    put(project / "workers" / "_lib.ts", "export const v: string = 'one'\n")
    dev = Dev(child, project)
    assert result(penstock, "script", "a") == "one"
    dev.change("_lib.ts", "export const v: string = 'two'\n")
    assert result(penstock, "script", "b") == "two"
    broken = dev.change("script.ts", text.format(" +"))
    assert "script.ts" in json.dumps(broken)
    dev.change("script.ts", text.format(" + '!'"))
    assert result(penstock, "script", "d") == "two!"
    dev.end()


@pytest.mark.spec("000-11.7")
@pytest.mark.spec("000-6.7")
def test_a_changed_file_is_reloaded(dev: Dev, penstock: Callable) -> None:
    assert result(penstock, "which", "a") == "one"
    changes = dev.change("which.py", VERSION.format(queue="which", version="two"))
    assert (changes["reloaded"], changes["problems"]) == (["which.py"], [])
    assert result(penstock, "which", "b") == "two"


def test_a_new_queue_is_worked_on_and_a_removed_one_is_not(dev: Dev, penstock: Callable) -> None:
    changes = dev.change("which.py", VERSION.format(queue="elsewhere", version="two"))
    assert (changes["queuesAdded"], changes["queuesRemoved"]) == (["elsewhere"], ["which"])
    assert result(penstock, "which", "a") == "two"
    changes = dev.change("more.py", VERSION.replace('"which"', '"more"').format(queue="more", version="three"))
    assert (changes["flowsAdded"], changes["queuesAdded"]) == (["more"], ["more"])
    assert result(penstock, "more", "b") == "three"
    assert dev.remove("more.py")["flowsRemoved"] == ["more"]


def test_an_error_is_shown_and_the_old_version_stays_in_use(dev: Dev, penstock: Callable) -> None:
    changes = dev.change("which.py", "def which(:\n")
    assert changes["kept"] == ["which.py"]
    assert changes["problems"][0]["code"] == "import_failed"
    assert "SyntaxError" in changes["problems"][0]["message"]
    penstock("start", "greet", "--key", "other")
    assert penstock("tail", "other").code == 0
    changes = dev.change("which.py", VERSION.format(queue="which", version="two"))
    assert changes["problems"] == []
    assert result(penstock, "which", "b") == "two"
    assert "which.py:1: the file cannot be imported: SyntaxError" in dev.end()


def test_a_run_is_worked_on_by_the_old_version_while_the_file_is_broken(
    dev: Dev, penstock: Callable, project: Path
) -> None:
    dev.change("which.py", "import no_such_module\n")
    # Started from a copy: the command could not load the broken file.
    (project / "copy").mkdir()
    (project / "copy" / "which.py").write_text(VERSION.format(queue="which", version="of the starter"))
    assert penstock("start", "which", "--key", "mine", "--dir", "copy").code == 0
    penstock("tail", "mine")
    assert penstock("runs", "show", "mine", "--json").json["result"] == "one"


def test_a_running_attempt_is_not_dropped(dev: Dev, penstock: Callable, project: Path, wait_for_file: Callable) -> None:
    put(project / "workers" / "words.py", "WORD = 'old'\n")
    dev.reloaded()
    dev.change("holds.py", HOLDS.format(version="old"))
    penstock("start", "holds", "--key", "before")
    wait_for_file(project / "began")
    dev.change("words.py", "WORD = 'new'\n")
    dev.change("holds.py", HOLDS.format(version="new"))
    (project / "gate").touch()
    penstock("tail", "before")
    run = penstock("runs", "show", "before", "--json").json
    assert (run["result"], run["steps"]["holds"]["attempt"]) == (["old", "old"], 1)
    assert result(penstock, "holds", "after") == ["new", "new"]


SHARING = """
from penstock import flow
import shared
from lib import words

@flow("shares")
def shares(input):
    return [shared.WORD, words.WORD]
"""


def test_an_imported_module_next_to_the_folder_is_watched(dev: Dev, penstock: Callable, project: Path) -> None:
    (project / "lib").mkdir()
    put(project / "lib" / "words.py", "WORD = 'one'\n")
    (project / "unrelated.py").write_text("")
    dev.reloaded()
    assert "No module named 'shared'" in dev.change("shares.py", SHARING)["problems"][0]["message"]
    put(project / "shared.py", "WORD = 'one'\n")  # the missing module appears
    assert dev.reloaded()["problems"] == []
    assert result(penstock, "shares", "a") == ["one", "one"]
    (project / "unrelated.py").write_text("nothing")
    put(project / "shared.py", "WORD = 'two'\n")
    assert dev.reloaded()["reloaded"] == ["../shared.py"]
    put(project / "lib" / "words.py", "WORD = 'six'\n")
    assert dev.reloaded()["reloaded"] == ["../lib/words.py"]
    assert result(penstock, "shares", "b") == ["two", "six"]
    put(project / "shared.py", "WORD = \n")
    assert dev.reloaded()["kept"] == ["shares.py"]
    assert "SyntaxError" in dev.end()


def test_an_edit_within_the_same_second_and_of_the_same_size_is_seen(dev: Dev, penstock: Callable) -> None:
    for version in ("two", "six", "ten"):
        dev.change("which.py", VERSION.format(queue="which", version=version))
        assert result(penstock, "which", version) == version


def test_it_starts_with_an_empty_folder(child: Callable, penstock: Callable, project: Path) -> None:
    (project / "empty").mkdir()
    dev = child("dev", "--dir", "empty")
    dev.wait_for_output("Working.")
    put(project / "empty" / "which.py", VERSION.format(queue="which", version="one"))
    dev.wait_for_output("added flow which; added queue which.")
    penstock("start", "which", "--key", "mine", "--dir", "empty")
    penstock("tail", "mine")
    assert penstock("runs", "show", "mine", "--json").json["result"] == "one"


def fetch(url: str, data: object = None) -> Any:
    body = None if data is None else json.dumps(data).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=60
    ) as answer:
        return json.loads(answer.read())


ASKS = """
from penstock import Context, flow

@flow("asks")
async def asks(_question, ctx: Context):
    answer = await ctx.wait.trigger("answer", timeout="1h")
    await ctx.state.set("address", answer.url)
    return await answer.wait()
"""


def test_one_command_has_the_api_a_worker_and_reload(child: Callable, project: Path) -> None:
    dev = child("dev", "--port", "0", "--json")
    dev.wait_for_output('"api"')
    address = json.loads(dev._output[-1])["api"]
    put(project / "workers" / "asks.py", ASKS)
    dev.wait_for_output('"asks"')
    assert "asks" in json.dumps(fetch(f"{address}/api/_registry"))
    run = fetch(f"{address}/api/_flow/asks/runs", {"input": "Tea?"})["id"]
    url = ""
    deadline = time.monotonic() + 100
    while not url and time.monotonic() < deadline:
        url = next(iter(fetch(f"{address}/api/_state?run={run}")["items"].values()), "")
    assert url.startswith(f"{address}/api/triggers/t-")
    assert fetch(url, "yes") == {"run": run}
    assert fetch(f"{address}/api/_run/{run}/result")["result"] == "yes"
    dev.signal(signal.SIGTERM)
    assert dev.end().code == 0


def test_a_default_port_in_use_is_replaced_and_a_chosen_one_is_not(child: Callable) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        refused = child("dev", "--port", str(port)).end()
        assert (refused.code, "cannot listen on" in refused.err) == (2, True)
    with socket.socket() as default, suppress(OSError):  # another program may have it
        default.bind(("127.0.0.1", 8765))
        dev = child("dev")
        dev.wait_for_output("Working.")
        dev.signal(signal.SIGTERM)
        answer = dev.end()
        assert "Port 8765 is in use" in answer.err
        assert "  API       http://127.0.0.1:" in answer.out


def test_the_summary(child: Callable) -> None:
    dev = child("dev")
    dev.wait_for_output("Working.")
    dev.signal(signal.SIGINT)
    answer = dev.end()
    assert answer.out.startswith("Penstock ")
    assert "greet (2 steps)" in answer.out
    assert "watching  workers" in answer.out
    assert answer.err.endswith("Stopped.\n")


async def test_polling_finds_added_changed_and_removed_files(tmp_path: Path) -> None:
    file, changes = tmp_path / "a.py", file_watch.poll_files(tmp_path, file_watch.take_snapshot(tmp_path), 0.005)

    def grow(file: Path) -> None:
        with file.open("a") as out:
            out.write("#")

    async def seen(change: Callable[[], object]) -> list[str]:
        next_batch = asyncio.create_task(anext(changes))
        await until(lambda: (change(), next_batch.done())[1])
        return [Path(name).name for name in next_batch.result()]

    (tmp_path / "notes.txt").touch()
    assert await seen(lambda: grow(file)) == ["a.py"]
    assert await seen(lambda: grow(file)) == ["a.py"]
    assert await seen(lambda: file.unlink(missing_ok=True)) == ["a.py"]
    await changes.aclose()


@pytest.mark.spec("000-11.7")
def test_app_reload(project: Path) -> None:
    """In a process of its own, because it imports files."""
    code = """
import asyncio
from pathlib import Path
from penstock import App

FILE = Path("workers/which.py")

async def main():
    async with App(dir="workers") as app, app.workers.background():
        old = app.registry
        FILE.write_text(FILE.read_text().replace("one", "two").replace('queue="which"', 'queue="other"'))
        new = app.reload()
        assert new is app.registry and old is not new and "other" in new.queues()
        print(await app.result(await app.start("which"), timeout=20))

asyncio.run(main())
"""
    put(project / "workers" / "which.py", VERSION.format(queue="which", version="one"))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.returncode) == ("two\n", 0), ran.stderr
