"""`penstock events` prints a stream, stored or live."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import App
from penstock.core.events import EventBody, encode_body, encode_event
from penstock.ports.unit import NewEvent, RunWrite, Unit


def envelopes(run: str) -> list[Any]:
    """Return the stream as the store has it."""

    async def read() -> list[Any]:
        async with App(handlers=()) as app:
            return [json.loads(encode_event(event)) for event in await app.events.read_all(f"nq:flow:{run}")]

    return asyncio.run(read())


def records(answer: Any) -> list[Any]:
    return [json.loads(line) for line in answer.lines]


@pytest.mark.spec("001-6.5")
def test_json_lines_are_the_envelopes(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "mine", "--input", '"Ada"')
    found = records(penstock("events", "mine", "--json"))
    assert found == envelopes("mine")
    assert [event["kind"] for event in found] == [
        "flow.started", "step.started", "greeted", "step.completed", "step.started", "step.completed", "flow.completed",
    ]  # fmt: skip


def test_the_full_name_of_the_stream(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "mine")
    assert penstock("events", "nq:flow:mine", "--json").out == penstock("events", "mine", "--json").out


def test_after_and_limit(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "mine")
    every = records(penstock("events", "mine", "--json"))
    assert records(penstock("events", "mine", "--json", "--limit", "2")) == every[:2]
    assert records(penstock("events", "mine", "--json", "--after", every[1]["id"], "--limit", "3")) == every[2:5]
    assert penstock("events", "mine", "--json", "--after", every[-1]["id"]).out == ""


def test_plain_lines_have_no_stack(penstock: Callable) -> None:
    penstock("run", "fails", "--key", "mine")
    answer = penstock("events", "mine")
    failed = next(line for line in answer.lines if "step.failed" in line)
    assert "it does not work" in failed
    assert '"stack"' not in failed


def test_the_events_of_another_kind_of_run(penstock: Callable) -> None:
    async def write() -> None:
        async with App(handlers=()) as app:
            run = RunWrite("c1", 0, b"{}", "countdown", "completed", closed=True, kind="countdown")
            kinds = ("countdown.ticked", "countdown.completed")
            events = [NewEvent("nq:countdown:c1", encode_body(EventBody(kind))) for kind in kinds]
            await app.store.commit([Unit("u1", run=run, events=events)])

    asyncio.run(write())
    for options in ([], ["--follow"]):
        found = records(penstock("events", "c1", "--json", *options))
        assert [event["kind"] for event in found] == ["countdown.ticked", "countdown.completed"]
    assert [line.split()[0] for line in penstock("runs").lines] == ["id", "c1"]
    for command in (["runs", "show", "c1"], ["export", "c1"], ["doctor", "c1"]):
        answer = penstock(*command)
        assert (answer.code, "no engine here for runs of kind 'countdown'" in answer.err) == (2, True), (
            command,
            answer,
        )


def test_follow_ends_with_the_run(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "mine")
    assert penstock("events", "mine", "--follow", "--json").out == penstock("events", "mine", "--json").out


def test_follow_prints_events_of_another_process(
    child: Callable, penstock: Callable, project: Path, wait_for_file: Callable
) -> None:
    penstock("start", "gated", "--key", "mine")
    follower = child("events", "mine", "--follow", "--json")
    follower.wait_for_output("flow.started")
    worker = child("run", "gated", "--key", "mine")
    follower.wait_for_output("step.started")
    (project / "gate").touch()
    assert worker.end().code == 0
    answer = follower.end()
    assert answer.code == 0
    assert [json.loads(line)["kind"] for line in answer.lines] == [
        "flow.started", "step.started", "step.completed", "flow.completed",
    ]  # fmt: skip


def test_follow_ends_at_the_limit(penstock: Callable) -> None:
    penstock("start", "greet", "--key", "mine")
    assert len(penstock("events", "mine", "--follow", "--limit", "1").lines) == 1


def test_ctrl_c_ends_follow(child: Callable, penstock: Callable) -> None:
    penstock("start", "greet", "--key", "mine")
    follower = child("events", "mine", "--follow")
    follower.wait_for_output("flow.started")
    follower.signal(signal.SIGINT)
    answer = follower.end()
    assert (answer.code, answer.err) == (130, "")


def test_a_closed_pipe_is_not_an_error(child: Callable, penstock: Callable) -> None:
    penstock("start", "greet", "--key", "mine")
    follower = child("events", "mine", "--follow")
    follower.wait_for_output("flow.started")
    follower.process.stdout.close()
    penstock("run", "greet", "--key", "mine")
    assert follower.process.wait(30) == 0
    assert follower.process.stderr.read() == ""


def test_a_queue_without_events(penstock: Callable) -> None:
    penstock("start", "greet")
    answer = penstock("events", "nq:queue:empty")
    assert (answer.code, answer.out, answer.err) == (0, "", "No events in nq:queue:empty.\n")
