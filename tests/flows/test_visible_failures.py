"""A final failure is visible: where the user's code failed, in events, views, dead letters and the log."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Context, Permanent, flow, job
from penstock.core.ids import dead_letter_id, step_job_id
from penstock.core.tracebacks import MAX_FRAMES, describe_error, parse_frames
from penstock.telemetry.logging import configure, restore_loggers

TWICE = {"attempts": 2, "backoff": {"type": "fixed", "delayMs": 1, "jitter": False}}


def charge(cents: int) -> None:
    if cents < 0:
        raise ValueError("no such amount")


@flow("pay", queue="pays", retry=TWICE)
async def pay(cents: int) -> None:
    charge(cents)


@job(name="send", queue="sends")
def send(to: str) -> None:
    raise Permanent("no such address")


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    engine = logging.getLogger("penstock")
    handlers, engine.propagate = engine.handlers[:], True
    engine.handlers.clear()
    stream = io.StringIO()
    with restore_loggers("", "penstock"):
        configure("info", "json", logger="", stream=stream)
        yield stream
    engine.handlers[:] = handlers


def read_errors(stream: io.StringIO) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in found if line["level"] == "error"]


@pytest.mark.spec("000-6.8")
async def test_the_events_and_the_view_of_a_failed_step_name_the_line(app: Any) -> None:
    async with app(pay) as a, a.workers.background():
        run, status = await a.run_to_end("pay", -1)
        assert status == "failed"
        first, last = await a.events_of(run, "step.failed")
        for event in (first, last):
            assert event.data["file"] == __file__
            assert [frame["function"] for frame in event.data["frames"]] == ["pay", "charge"]
            assert event.data["frames"][-1]["source"] == 'raise ValueError("no such amount")'
            assert event.data["line"] == event.data["frames"][-1]["line"] == charge.__code__.co_firstlineno + 2
        letter = dead_letter_id(step_job_id(run, "pay", 1))
        assert "deadLetter" not in first.data
        assert last.data["deadLetter"] == letter
        step = (await a.runs.get(run)).steps["pay"]
        assert (step.file, step.line, step.error_name) == (__file__, last.data["line"], "ValueError")
        assert step.dead_letter == letter
        assert (await a.dead_letters.get(letter)).error["frames"] == last.data["frames"]
        assert (await a.jobs.get(step_job_id(run, "pay", 1))).error["line"] == last.data["line"]


@pytest.mark.spec("000-6.8")
async def test_a_failed_job_names_the_line(app: Any) -> None:
    async with app(send) as a, a.workers.background():
        id = await a.enqueue(send, "eve")
        await a.wait_for_state(id, "failed")
        error = (await a.jobs.get(id)).error
        assert (error["file"], error["line"]) == (__file__, send.__code__.co_firstlineno + 2)
        assert error["deadLetter"] == dead_letter_id(id)
        (failed,) = await a.job_events("sends", "job.failed")
        assert failed.data["frames"] == error["frames"]


@pytest.mark.spec("000-6.8")
async def test_a_final_failure_is_logged_once_as_an_error_with_its_traceback(app: Any, logged: io.StringIO) -> None:
    async with app(pay, send) as a, a.workers.background():
        run, _ = await a.run_to_end("pay", -1)
        id = await a.enqueue(send, "eve")
        await a.wait_for_state(id, "failed")
    step, plain = read_errors(logged)
    assert step["msg"].startswith(f"step pay of run {run} failed for good: ValueError: no such amount")
    assert {name: step[name] for name in ("run", "flow", "step", "job", "attempt", "queue", "code")} == {
        "run": run, "flow": "pay", "step": "pay", "job": f"{run}.pay.1", "attempt": 2, "queue": "pays",
        "code": "ValueError",
    }  # fmt: skip
    assert f"penstock dlq show {run}.pay.1.dlq" in step["msg"]
    assert step["error"].startswith("Traceback (most recent call last):")
    assert "in charge" in step["error"]
    assert step["error"].endswith("ValueError: no such amount")
    assert (plain["job"], plain["code"]) == (id, "permanent")
    assert "run" not in plain


async def test_a_standard_formatter_prints_the_traceback(memory: Any, caplog: pytest.LogCaptureFixture) -> None:
    with restore_loggers("penstock"):
        logging.getLogger("penstock").propagate = True
        async with memory(pay) as a, a.workers.background():
            await a.run_to_end("pay", -1)
    assert "in charge" in caplog.text


async def test_secrets_are_hidden_in_frames_and_in_the_log(memory: Any, logged: io.StringIO) -> None:
    @flow("leak")
    async def leak(input: Any) -> None:
        raise Permanent("password=hunter2")  # the source of this line is recorded

    async with memory(leak) as a, a.workers.background():
        run, _ = await a.run_to_end("leak")
        (failed,) = await a.events_of(run, "step.failed")
        assert "hunter2" not in json.dumps(failed.data)
        assert failed.data["frames"][0]["source"].startswith("raise Permanent(")
    assert "hunter2" not in logged.getvalue()
    assert "failed for good" in logged.getvalue()


async def test_frames_are_bounded(memory: Any) -> None:
    def dive(depth: int) -> None:
        if depth:
            dive(depth - 1)
        raise Permanent("deep")

    @flow("deep")
    async def deep(input: Any) -> None:
        dive(500)

    async with memory(deep) as a, a.workers.background():
        run, _ = await a.run_to_end("deep")
        (failed,) = await a.events_of(run, "step.failed")
        assert len(failed.data["frames"]) == MAX_FRAMES
        assert len(json.dumps(failed.data)) < 16_000


async def test_frames_of_libraries_are_left_out(memory: Any) -> None:
    @flow("reads")
    async def reads(input: Any) -> None:
        json.loads("{")

    async with memory(reads) as a, a.workers.background():
        run, _ = await a.run_to_end("reads")
        (failed,) = await a.events_of(run, "step.failed")
        assert [frame["function"] for frame in failed.data["frames"]] == ["reads"]
        assert failed.data["file"] == __file__
        assert "decoder.py" in failed.data["stack"], "the stack has them"


def test_the_frames_of_a_written_traceback() -> None:
    frames = parse_frames('  File "/srv/pay.py", line 7, in pay\n    charge(1)\nValueError: no\n')
    assert [(one.file, one.line, one.function, one.source) for one in frames] == [
        ("/srv/pay.py", 7, "pay", "charge(1)")
    ]


@pytest.mark.parametrize(
    ("name", "message", "text"),
    [
        ("ValueError", "no", "ValueError: no"),
        ("ValueError", "ValueError", "ValueError"),
        ("KeyError", "KeyError: 'a'", "KeyError: 'a'"),
        ("ValueError", "", "ValueError"),
        (None, "no", "no"),
    ],
)
def test_an_error_is_named_once(name: str | None, message: str, text: str) -> None:
    assert describe_error(name, message) == text


async def test_the_error_of_a_missing_key_says_so(memory: Any) -> None:
    """The text of a KeyError is the bare key."""

    @flow("lookup")
    async def lookup(input: Any, ctx: Context) -> Any:
        return {}["customer"]

    async with memory(lookup) as a, a.workers.background():
        run, _ = await a.run_to_end("lookup")
        (failed,) = await a.events_of(run, "step.failed")
        assert failed.data["error"] == "KeyError: 'customer'"
