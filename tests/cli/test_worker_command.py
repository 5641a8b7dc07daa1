"""`penstock worker` prints a summary, works and stops gracefully."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redis_server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_works_and_stops_gracefully(
    child: Callable, penstock: Callable, project: Path, wait_for_file: Callable, number: int
) -> None:
    worker = child("worker")
    worker.wait_for_output("Working.")
    penstock("start", "gated", "--key", "mine")
    wait_for_file(project / "began")
    worker.signal(number)
    (project / "gate").touch()
    answer = worker.end()
    assert answer.code == 0
    assert "Stopping" in answer.err
    assert answer.err.endswith("Stopped.\n")
    run = penstock("runs", "show", "mine", "--json").json
    assert (run["status"], run["steps"]["gated"]["attempt"]) == ("completed", 1)


def test_a_handler_that_does_not_finish_is_released(
    child: Callable, penstock: Callable, project: Path, wait_for_file: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_GRACE", "100ms")
    worker = child("worker")
    penstock("start", "gated", "--key", "mine")
    wait_for_file(project / "began")
    worker.signal(signal.SIGTERM)
    assert worker.end().code == 0
    (project / "gate").touch()
    assert penstock("run", "gated", "--key", "mine", "--json").json["status"] == "completed"


def test_the_summary(child: Callable, project: Path) -> None:
    (project / "workers" / "broken.py").write_text("import no_such_module\n")
    worker = child("worker", "--concurrency", "3", "--queues", "greet,gated")
    worker.wait_for_output("Working.")
    worker.signal(signal.SIGTERM)
    answer = worker.end()
    assert "store     sqlite:///.penstock/penstock.db" in answer.out
    assert "queues    greet, gated, 3 handlers at a time" in answer.out
    assert "greet (2 steps)" in answer.out
    assert "problems  1" in answer.out
    assert "broken.py:1: the file cannot be imported: ModuleNotFoundError" in answer.err


def test_the_summary_in_json(child: Callable) -> None:
    worker = child("worker", "--json")
    worker.wait_for_output("queues")
    worker.signal(signal.SIGTERM)
    summary = json.loads(worker.end().out)
    assert summary["queues"] == ["fails", "gated", "greet"]
    assert summary["flows"]["greet"] == ["greet", "answer"]
    assert summary["problems"] == []


def test_the_log_in_json(child: Callable, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LOG_FORMAT", "json")
    (project / "workers" / "broken.py").write_text("import no_such_module\n")
    worker = child("worker")
    worker.wait_for_output("Working.")
    worker.signal(signal.SIGTERM)
    line = json.loads(worker.end().err.splitlines()[0])
    assert (line["level"], line["logger"]) == ("warning", "penstock")
    assert "broken.py:1" in line["msg"]


LOOP = """
import asyncio
from penstock import flow

@flow("loop")
async def loop():
    return type(asyncio.get_running_loop()).__module__
"""


def test_it_runs_on_uvloop_if_installed(child: Callable, penstock: Callable, project: Path) -> None:
    (project / "workers" / "loop.py").write_text(LOOP)
    assert _loop_of(child("worker"), penstock).startswith("uvloop")


def test_it_runs_on_asyncio_without_uvloop(
    child: Callable, penstock: Callable, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "workers" / "loop.py").write_text(LOOP)
    (project / "hidden").mkdir()
    (project / "hidden" / "uvloop.py").write_text("raise ImportError('not installed')\n")
    path = [str(project / "hidden"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    assert _loop_of(child("worker"), penstock).startswith("asyncio")


def _loop_of(worker: Any, penstock: Callable) -> str:
    worker.wait_for_output("Working.")
    penstock("start", "loop", "--key", "mine")
    penstock("tail", "mine")
    run = penstock("runs", "show", "mine", "--json").json
    worker.signal(signal.SIGTERM)
    worker.end()
    return run["result"]


def test_the_password_of_a_url_is_not_shown(penstock: Callable) -> None:
    place = redis_server.url().removeprefix("redis://")  # a server that refuses it; one that is away is waited for
    answer = penstock("worker", "--url", f"redis://user:secret@{place}")
    assert answer.code == 2
    assert place.partition("/")[0] in answer.err
    assert "secret" not in answer.out + answer.err


def test_an_unknown_queue(penstock: Callable) -> None:
    answer = penstock("worker", "--queues", "nope")
    assert answer.code == 2
    assert "no handler for queue 'nope'" in answer.err
    assert "[unknown_queue]" in answer.err


def test_nothing_to_work_on(penstock: Callable, project: Path) -> None:
    (project / "empty").mkdir()
    answer = penstock("worker", "--dir", "empty")
    assert answer.code == 2
    assert "nothing to work on" in answer.err


def test_until_idle_works_on_what_is_due_and_exits(penstock: Callable, project: Path) -> None:
    penstock("start", "greet", "--input", '"Ann"', "--key", "mine")
    answer = penstock("worker", "--until-idle")
    assert answer.code == 0
    assert answer.out.endswith("Nothing is due, and nothing is planned.\n")
    shown = penstock("runs", "show", "mine", "--json")
    assert shown.code == 0, shown.err
    assert shown.json["result"] == "Hello, Ann!"
    penstock("start", "greet", "--input", '"Ben"', "--delay", "1h")
    answer = penstock("worker", "--until-idle", "--json")
    report = json.loads(answer.lines[-1])
    assert answer.code == 0
    assert report["idle"] is True
    assert report["next"] > "2026"
    assert f"Nothing is due until {report['next']}" in penstock("worker", "--until-idle").out


def test_until_idle_runs_one_process(penstock: Callable) -> None:
    answer = penstock("worker", "--until-idle", "--processes", "2")
    assert answer.code == 2
    assert "--until-idle runs one process; use --concurrency" in answer.err
