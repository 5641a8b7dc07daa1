"""Commands import what they need: `--help` not the engine, `queues` and `run` not what other commands are made of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.cli import main

SLOW = ("asyncio", "apsw", "msgspec", "penstock.app", "penstock.flows", "rich.live")

# Each takes long to import, and only some programs need it.
RARE = (
    "asyncpg", "redis", "bullmq", "httpx", "starlette", "uvloop", "pydantic", "jsonschema_rs", "rich.console", "urllib.request",
    "importlib.resources", "tempfile", "shutil", "ctypes", "html", "email.message", "penstock.app.sync", "penstock.dags.engine",
    "penstock.dags.catalog", "penstock.entities.engine", "penstock.messaging", "penstock.transactions", "penstock.stores.redis",
    "penstock.stores.postgres", "penstock.stores.offload", "penstock.runners.node", "penstock.runners.process", "penstock.http",
    "penstock.blobs", "penstock.app.export", "penstock.app.diagnosis", "penstock.app.alerts", "penstock.app.bridges",
    "penstock.app.dags", "penstock.app.entities", "penstock.app.tokens", "penstock.app.webhooks", "penstock.app.outbox",
    "penstock.flows.diagram", "penstock.flows.delivery", "penstock.flows.fork",
)  # fmt: skip
WORK = (
    "penstock.app.workers",
    "penstock.app.runs",
    "penstock.flows.engine",
    "penstock.jobs.engine",
    "penstock.runners",
)
FLOW = """
from penstock import flow, step

@flow("order", emits=["order.paid"])
async def pay(order, ctx):
    ctx.emit("order.paid", order)

@step(on="order.paid")
def send(order):
    return "sent"
"""


def python(code: str, cwd: Path | None = None) -> str:
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=cwd)
    return run.stdout


def loaded(words: list[str], names: tuple[str, ...], cwd: Path | None = None) -> list[str]:
    """Return which modules a command has imported when it ends."""
    code = f"""
import sys
from penstock.cli import main
assert main({words!r}) == 0
print("loaded", *[name for name in {names!r} if name in sys.modules])
"""
    return python(code, cwd).splitlines()[-1].split()[1:]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "order.py").write_text(FLOW)
    (tmp_path / "penstock.toml").write_text('url = "sqlite:///here.db"\n')
    return tmp_path


def test_help_does_not_load_the_engine() -> None:
    assert loaded(["--help"], SLOW) == []


def test_run_loads_only_what_a_worker_needs(project: Path) -> None:
    assert loaded(["run", "order", "--input", "{}"], RARE, project) == []


def test_queues_loads_neither_engines_nor_a_worker(project: Path) -> None:
    assert (
        main(
            [
                "start",
                "order",
                "--input",
                "{}",
                "--url",
                f"sqlite:///{project}/here.db",
                "--dir",
                str(project / "workers"),
            ]
        )
        == 0
    )
    assert loaded(["queues"], RARE + WORK, project) == []


def test_a_program_is_not_searched_for_garbage_that_its_imports_made(project: Path) -> None:
    """It took a third of the time of a short command; a long one must collect its own garbage all the same."""
    code = """
import gc, sys
import penstock.cli
import penstock.cli.commands.flows as flows
sys.argv = ["penstock", "flows"]
seen, load = [], flows.load_registry
flows.load_registry = lambda *args: seen.append((gc.isenabled(), gc.get_freeze_count() > 0)) or load(*args)
before = gc.get_stats()[2]["collections"]
assert penstock.cli.run_program() == 0
print(seen, gc.get_stats()[2]["collections"] - before)
"""
    assert python(code, project).splitlines()[-1] == "[(True, True)] 0"


def test_a_star_import_has_every_public_name() -> None:
    found: dict[str, object] = {}
    exec("from penstock import *", found)
    assert set(penstock.__all__) <= set(found)
