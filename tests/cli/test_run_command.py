"""`penstock run` starts a run, works on it, shows it and reports its status in the exit code."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import SyncApp

STEP_KEYS = {"step", "n", "status", "attempt", "startedAt", "completedAt", "duration", "result", "error", "code"}


def test_a_completed_run_is_printed_and_exits_with_0(penstock: Callable) -> None:
    answer = penstock("run", "greet", "--input", '"Ada"', "--key", "first")
    assert answer.code == 0
    assert re.fullmatch(r"greet first completed in [\d.]+ m?s", answer.lines[0])
    assert [line.split()[:2] for line in answer.lines[1:3]] == [["✓", "greet"], ["✓", "answer"]]
    assert answer.lines[3] == "result Hello, Ada!"
    assert answer.err == ""


def test_json_is_one_object_with_everything(penstock: Callable) -> None:
    run = penstock("run", "greet", "--input", '"Ada"', "--json").json
    assert (run["flow"], run["status"], run["input"], run["result"]) == ("greet", "completed", "Ada", "Hello, Ada!")
    assert run["error"] is None
    assert run["startedAt"] <= run["completedAt"]
    assert run["duration"] >= 0
    assert list(run["steps"]) == ["greet", "answer"]
    assert set(run["steps"]["answer"]) >= STEP_KEYS
    assert run["steps"]["answer"]["status"] == "completed"


def test_a_failed_run_prints_its_error_and_exits_with_1(penstock: Callable) -> None:
    answer = penstock("run", "fails")
    assert answer.code == 1
    assert "✗ fails" in answer.out
    assert "error it does not work" in answer.out


def test_a_failed_run_in_json(penstock: Callable) -> None:
    answer = penstock("run", "fails", "--json")
    assert answer.code == 1
    assert (answer.json["status"], answer.json["error"]) == ("failed", "it does not work")
    assert answer.json["steps"]["fails"]["status"] == "failed"


def test_input_from_a_file(penstock: Callable, project: Path) -> None:
    (project / "who.json").write_text('"Grace"')
    assert penstock("run", "greet", "--input", "@who.json", "--json").json["result"] == "Hello, Grace!"


def test_input_from_stdin(penstock: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO('"Zoë"'.encode())))
    assert penstock("run", "greet", "--input", "-", "--json").json["result"] == "Hello, Zoë!"


def test_a_negative_number_is_an_input(penstock: Callable) -> None:
    assert penstock("run", "greet", "--input", "-5", "--json").json["input"] == -5


def test_tags_priority_and_delay_reach_the_run(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "k", "--tag", "a=1", "--tag", "b=x=y", "--priority", "7", "--delay", "50ms")
    first = json.loads(penstock("events", "k", "--json", "--limit", "1").out)
    assert first["meta"]["tags"] == {"a": "1", "b": "x=y"}


def test_the_key_of_an_unfinished_run_continues_it(penstock: Callable, project: Path) -> None:
    started = penstock("start", "greet", "--key", "mine", "--input", '"Ada"')
    assert started.out == "mine\n"
    answer = penstock("run", "greet", "--key", "mine", "--json")
    assert answer.code == 0
    assert answer.json["result"] == "Hello, Ada!"
    assert "Run mine already exists; continuing it." in answer.err


def test_the_key_of_an_ended_run_shows_it_again(penstock: Callable) -> None:
    penstock("run", "fails", "--key", "mine")
    answer = penstock("run", "fails", "--key", "mine", "--json")
    assert answer.code == 1
    assert answer.json["steps"]["fails"]["attempt"] == 1
    assert "Run mine has already ended." in answer.err


def test_the_key_of_another_flow_is_refused(penstock: Callable) -> None:
    penstock("run", "fails", "--key", "mine")
    answer = penstock("run", "greet", "--key", "mine", "--input", "1")
    assert answer.code == 2
    assert "belongs to flow 'fails'" in answer.err


def test_handler_output_stays_out_of_the_answer(penstock: Callable, project: Path) -> None:
    (project / "gate").touch()
    answer = penstock("run", "gated", "--json")
    assert answer.json["result"] == "through"
    assert "the handler prints this" in answer.err


def test_a_run_cancelled_meanwhile_exits_with_1(child: Callable, project: Path, wait_for_file: Callable) -> None:
    running = child("run", "gated", "--key", "mine", "--json")
    wait_for_file(project / "began")
    with SyncApp(handlers=()) as app:
        assert app.runs.cancel("mine", "no longer wanted")
    answer = running.end()
    assert answer.code == 1
    assert (answer.json["status"], answer.json["reason"]) == ("cancelled", "no longer wanted")


def test_other_runs_are_not_worked_on(penstock: Callable) -> None:
    penstock("start", "fails", "--key", "other")
    penstock("start", "greet", "--key", "same-flow", "--input", "2")
    assert penstock("run", "greet", "--input", "1").code == 0
    for key in ("other", "same-flow"):
        shown = penstock("runs", "show", key, "--json").json
        assert (shown["status"], shown["steps"]) == ("running", {})


def test_all_works_on_other_runs_too(penstock: Callable) -> None:
    penstock("start", "fails", "--key", "other")
    assert penstock("run", "greet", "--input", "1", "--all").code == 0
    assert penstock("runs", "show", "other", "--json").json["status"] == "failed"


STARTS = """
from pathlib import Path
from penstock import Context, flow, job

@job(queue="notes")
async def note(text):
    Path(text).touch()

@flow("child", queue="children")
async def child(ctx: Context):
    ctx.enqueue(note, "from-the-child")

@flow("starts")
async def starts(ctx: Context):
    ctx.start(child)
    ctx.enqueue(note, "from-the-run")
    ctx.enqueue(note, "much-later", delay="1d")
    ctx.enqueue("other-service", 1)  # for another program: the run does not wait for it
"""


def test_what_the_run_starts_is_worked_on(penstock: Callable, project: Path) -> None:
    (project / "workers" / "starts.py").write_text(STARTS)
    penstock("enqueue", "notes", "--input", '"foreign"')
    assert penstock("run", "starts").code == 0
    made = [name for name in ("from-the-run", "from-the-child", "foreign", "much-later") if (project / name).exists()]
    assert made == ["from-the-run", "from-the-child"]


def test_the_url_of_the_environment_is_used(penstock: Callable, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///elsewhere.db")
    assert penstock("run", "greet", "--input", "1").code == 0
    assert (project / "elsewhere.db").exists()
    assert not (project / ".penstock").exists()
