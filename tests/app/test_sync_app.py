"""SyncApp: everything App has, for code without an event loop."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import App, PenstockError, Permanent, SyncApp, flow, job
from penstock.app.app import NotOpen
from penstock.app.dead_letters import DeadLetters
from penstock.app.events import Events
from penstock.app.jobs import Jobs
from penstock.app.outbox import Outbox
from penstock.app.queues import Queues
from penstock.app.runs import Runs
from penstock.app.schedules import Schedules
from penstock.app.state import AppState
from penstock.app.sync import SyncOutbox, SyncWorkers
from penstock.app.sync_facets import (
    SyncAppState,
    SyncDeadLetters,
    SyncEvents,
    SyncJobs,
    SyncQueues,
    SyncRuns,
    SyncSchedules,
    SyncWaits,
)
from penstock.app.waits import Waits
from penstock.app.workers import Workers
from penstock.core.errors import ConfigError


@flow("shop")
def shop(order: dict[str, Any]) -> int:
    if order["id"] == 13:
        raise Permanent("unlucky")
    return order["id"] * 2


@job(queue="mail")
def send(mail: str) -> str:
    return f"sent {mail}"


def public(cls: type) -> dict[str, Any]:
    return {name: item for name, item in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}


def test_the_generated_facets_are_up_to_date() -> None:
    root = Path(__file__).parents[2]
    sys.path.insert(0, str(root / "tools"))
    try:
        import generate_sync
    finally:
        sys.path.pop(0)
    assert generate_sync.TARGET.read_text() == generate_sync.generate(), "run: python tools/generate_sync.py"
    assert generate_sync.CLIENT_TARGET.read_text() == generate_sync.generate_client(), "run: tools/generate_sync.py"


@pytest.mark.parametrize(
    ("has", "mirrors", "without"),
    [
        (App, SyncApp, {"open_claim", "listen"}),  # the worker's own, and the server's: SyncApp has listeners=
        (Runs, SyncRuns, set()),
        (Jobs, SyncJobs, set()),
        (Queues, SyncQueues, set()),
        (DeadLetters, SyncDeadLetters, {"retry_step"}),
        (Schedules, SyncSchedules, set()),
        (Waits, SyncWaits, set()),
        (AppState, SyncAppState, set()),
        (Events, SyncEvents, {"close"}),  # the App's own
        (Outbox, SyncOutbox, set()),
        (Workers, SyncWorkers, {"close", "refresh"}),  # the App's own
    ],
)
def test_the_sync_app_mirrors_every_method(has: type, mirrors: type, without: set[str]) -> None:
    mine = public(mirrors)
    for name, method in public(has).items():
        if name in without:
            continue
        assert name in mine, f"{mirrors.__name__} has no {name}"
        theirs, ours = inspect.signature(method).parameters, inspect.signature(mine[name]).parameters
        assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()], name


def test_opened_and_closed_by_hand() -> None:
    app = SyncApp(":memory:", handlers=[shop, send])
    with pytest.raises(NotOpen, match="this SyncApp is not open"):
        app.start("shop", {"id": 1})
    app.close()  # nothing to close yet
    app.open()
    with pytest.raises(ConfigError, match="already open"):
        app.open()
    app.workers.start()
    assert app.result(app.start("shop", {"id": 4}), timeout=20) == 8
    app.close()
    app.close()
    with pytest.raises(NotOpen):
        app.runs.list()
    with app:  # and again
        assert app.runs.list() == []


def test_runs_jobs_and_schedules() -> None:
    with SyncApp(":memory:", handlers=[shop, send]) as app:
        with app.workers.background(concurrency=2):
            app.start(shop, {"id": 4}, key="o-4")
            assert app.runs.wait("o-4", timeout=20).status == "completed"
            assert app.jobs.result(app.enqueue("mail", "ada"), timeout=20) == "sent ada"
        assert [row.id for row in app.runs.list(status="completed")] == ["o-4"]
        assert app.runs.at("o-4", "0-1").status == "running"
        follow = app.runs.follow("o-4", after="0-1")
        assert next(follow).kind == "step.started"
        follow.close()
        app.schedules.add("s", flow="shop", input={"id": 1}, every="1h")
        assert ([row.id for row in app.schedules.list()], app.schedules.remove("s")) == (["s"], True)
        assert "shop" in app.describe()["flows"]
        assert (app.reload().queues(), app.registry.queues()) == (["default", "mail"], ["default", "mail"])
        assert app.settings.url == ":memory:"


def test_sync_facets() -> None:
    with SyncApp(":memory:", handlers=[shop, send]) as app:
        received: list[str] = []
        stop = app.events.on_kind("flow.failed", lambda event: received.append(event.subject))
        app.workers.start()
        app.start("shop", {"id": 13}, key="o-13")
        assert app.runs.wait("o-13", timeout=20).status == "failed"
        [(id, letter)] = app.dead_letters.list("default")
        assert (letter.error["message"], app.dead_letters.queues()) == ("unlucky", {"default-dlq": 1})
        app.dead_letters.redrive(id, input={"id": 3})
        assert app.result("o-13", timeout=20) == 6
        app.workers.stop()
        stop()
        app.queues.pause("mail")
        assert [row.paused for row in app.queues.list()] == [False, False, True]
        assert app.jobs.get(app.enqueue("mail", "x")).state == "waiting"
        assert app.queues.drain("mail") == 1
        app.state.set("n", 1)
        assert (app.state.patch("n", lambda n: n + 1), app.state.list(), app.state.get("n")) == (2, {"n": 2}, 2)
        assert app.state.of_run("o-13").get("nothing", "none") == "none"
        assert [app.emit("day.ended", {"n": 1}, key="day") for _ in range(2)] == [True, False]
        assert [event.kind for event in app.events.read("nq:global")] == ["day.ended"]
        assert next(app.events.subscribe("nq:global")).kind == "day.ended"


def test_a_sync_app_that_cannot_start_raises() -> None:
    with SyncApp(":memory:", handlers=[send]) as app:
        with pytest.raises(PenstockError, match="no handler for queue 'nope'"):
            app.workers.start(queues=["nope"])
        app.workers.stop()


AT_EXIT = """
import atexit, sys
from penstock import SyncApp, job

@job(queue="mail")
def send(mail):
    return f"sent {mail}"

app = SyncApp(sys.argv[1], handlers=[send])
app.open()
atexit.register(lambda: print("closed"))
atexit.register(app.close)
app.workers.start()
print(app.jobs.result(app.enqueue("mail", "ada"), timeout=20))
"""


def test_closing_at_exit(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(AT_EXIT)
    command = [sys.executable, str(tmp_path / "script.py"), f"sqlite:///{tmp_path / 'x.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "sent ada\nclosed\n", "")
