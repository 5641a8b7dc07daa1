"""The registry's fingerprint: equal in every process with the same code, changed by every edit that matters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import App, job
from penstock.core.clock import to_iso
from penstock.testing.clock import FakeClock

ORDERS = """from decimal import Decimal
from penstock import flow
import rules
from shop import prices
from shop.tax import (
    RATE,  # a constant
)

@flow("order", retry={retry}, queue="orders")
async def order(input, ctx):
    from shop import lazy
    return {{"a", "b", "c"}}, prices.total(input), RATE, lazy
"""


def write_project(folder: Path) -> Path:
    workers = folder / "workers"
    for path, text in {
        "workers/orders.py": ORDERS.format(retry=3),
        "workers/other.py": "from penstock import job\n\n@job()\ndef other(): ...\n",
        "workers/rules.py": "LIMIT = 1\n",
        "shop/__init__.py": "",
        "shop/prices.py": "from . import currency\n\ndef total(n):\n    return n\n",
        "shop/currency.py": "EUR = 1\n",
        "shop/tax.py": "RATE = 19\n",
        "shop/lazy.py": "X = 1\n",
        "shop/unused.py": "X = 1\n",
    }.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return workers


def describe(workers: Path, seed: int = 0) -> dict[str, Any]:
    """Return the registry as another process loads it."""
    command = [sys.executable, "-m", "penstock.cli", "registry", "--json", "--dir", str(workers)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=workers.parent, env={**os.environ, "PYTHONHASHSEED": str(seed)}
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert not found["problems"], found["problems"]
    return found


@pytest.mark.spec("000-11.5")
def test_every_process_computes_the_same_fingerprint(tmp_path: Path) -> None:
    first = describe(write_project(tmp_path / "here"), seed=1)
    second = describe(write_project(tmp_path / "there"), seed=2)
    assert first["fingerprint"] == second["fingerprint"]
    assert len(first["fingerprint"]) == 32


EDITS = {
    "code": ("workers/orders.py", "prices.total(input)", "prices.total(1)", ["orders.order"]),
    "config": ("workers/orders.py", "retry=3", "retry=4", ["orders.order"]),
    "imported function": ("shop/prices.py", "return n", "return n + 1", ["orders.order"]),
    "imported constant": ("shop/tax.py", "19", "20", ["orders.order"]),
    "module of a module": ("shop/currency.py", "1", "2", ["orders.order"]),
    "module beside it": ("workers/rules.py", "1", "2", ["orders.order"]),
    "imported when it runs": ("shop/lazy.py", "1", "2", ["orders.order"]),
    "nothing it imports": ("shop/unused.py", "1", "2", []),
    "line ends": ("workers/orders.py", "\n", "\r\n", []),
}


# Loads a project and prints the fingerprints of its handlers, before and after each edit of one file.
LOAD = """
import json, pathlib, sys
from penstock import App

def load():
    for name in [name for name in sys.modules if name.split(".")[0] in ("shop", "rules")]:
        del sys.modules[name]
    return {one["id"]: one["fingerprint"] for one in App(":memory:", dir="workers").describe()["workers"]}

for file, before, after, _ in json.loads(sys.argv[1]):
    path = pathlib.Path(file)
    text = path.read_bytes()
    assert before.encode() in text
    first = load()
    path.write_bytes(text.replace(before.encode(), after.encode()))
    second = load()
    path.write_bytes(text)
    print(json.dumps([f"{id}.order" for id in first if second[id] != first[id]]))
"""


@pytest.mark.spec("000-11.5")
def test_an_edit_changes_the_fingerprint_of_its_handlers(tmp_path: Path) -> None:
    write_project(tmp_path)
    command = [sys.executable, "-B", "-c", LOAD, json.dumps(list(EDITS.values()))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = dict(zip(EDITS, map(json.loads, done.stdout.splitlines()), strict=True))
    assert found == {edit: changed for edit, (*_, changed) in EDITS.items()}


@pytest.mark.spec("000-11.1")
def test_the_registry_names_files_lines_runner_store_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock import __version__

    workers = write_project(tmp_path)
    clock = FakeClock()
    monkeypatch.setenv("PENSTOCK_LOG", "error")
    app = App("sqlite:///x.db", dir=workers, clock=clock, namespace="shop")
    first = app.describe()
    clock.advance("1h")
    assert app.describe() == first, "compiledAt is when the code was loaded"
    assert first["compiledAt"] == to_iso(clock.now_ms() - 3_600_000)
    assert (first["version"], first["penstock"]) == (1, __version__)
    assert first["provider"] == first["eventStore"] == {"name": "sqlite"}
    assert first["runner"] == {
        "py": {"enabled": True, "isolate": "inprocess"},
        "ts": {"enabled": False, "isolate": "node"},
    }
    assert {one["runner"] for one in first["workers"]} == {"inprocess"}
    assert first["logger"] == {"name": "console", "level": "error"}
    order = next(one for one in first["workers"] if one["id"] == "orders")
    assert order["filePath"] == str(workers / "orders.py")
    assert "@flow" in ORDERS.splitlines()[order["line"] - 1]


def test_a_reload_changes_it_and_an_edit_without_a_reload_does_not(tmp_path: Path) -> None:
    workers = write_project(tmp_path)
    app = App(":memory:", dir=workers)
    (workers / "other.py").write_text("from penstock import job\n\n@job()\ndef other():\n    return 2\n")
    first = app.describe()["fingerprint"]
    assert first == describe(write_project(tmp_path / "again"))["fingerprint"], "of the loaded code, not of the disk"
    app.reload()
    assert app.describe()["fingerprint"] != first


def test_functions_have_fingerprints_by_their_options_too() -> None:
    def make(retry: int) -> Any:
        @job(queue="q", retry=retry)
        def work() -> None: ...

        return work

    one, same, other = (App(":memory:", handlers=[make(n)]).registry.fingerprint for n in (1, 1, 2))
    assert one == same != other
