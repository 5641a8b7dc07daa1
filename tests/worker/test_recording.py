"""Outcomes that cannot be recorded: the attempt fails at once with its own error, and does not wait for its lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import RateLimited, Retry, flow, job
from penstock.errors import RunFailed
from penstock.flows.decide import Decider
from penstock.jobs.engine import JobWork
from penstock.worker.channel import WorkerChannel

SOON = {"attempts": 2, "backoff": {"type": "fixed", "delay": "10ms"}}
FAR = 1_800_000_000_000  # seconds: a header that held milliseconds since the epoch


class Throttled(Exception):
    retry_after: Any = FAR


class BrokenRetryAfter(Exception):
    @property
    def retry_after(self) -> Any:
        raise RuntimeError("no header")


class BrokenRetriable(Exception):
    @property
    def retriable(self) -> Any:
        raise RuntimeError("who knows")


class BrokenCode(Exception):
    @property
    def code(self) -> Any:
        raise RuntimeError("no code")


class BrokenText(Exception):
    code: Any

    def __init__(self) -> None:
        self.code = self

    def __str__(self) -> str:
        raise RuntimeError("no words")


def broken_syntax_error() -> SyntaxError:
    problem = SyntaxError("broken")
    problem.text, problem.lineno, problem.offset = object(), "one", object()  # type: ignore[assignment]
    return problem


ERRORS: dict[str, tuple[Callable[[], Exception], str]] = {
    "beyond the calendar": (
        lambda: Throttled("429"),
        "429 (`retry_after` is ignored and the retry policy sets the delay: duration 18",
    ),
    "a property that raises": (
        lambda: BrokenRetryAfter("429"),
        "429 (`retry_after` is ignored and the retry policy sets the delay: no h",
    ),
    "Retry": (
        lambda: Retry("busy", after="99999999d"),
        "busy (`after` is ignored and the retry policy sets the delay: duration '999",
    ),
    "RateLimited": (lambda: RateLimited("99999999d"), "duration '99999999d' is too long; the maximum is 36525d"),
    "retriable": (lambda: BrokenRetriable("hm"), "hm"),
    "code": (lambda: BrokenCode("hm"), "hm"),
    "no text": (BrokenText, "BrokenText"),
    "a broken SyntaxError": (broken_syntax_error, "broken"),
}


@pytest.mark.parametrize("name", ERRORS)
async def test_an_error_with_invalid_attributes_is_retried_by_the_policy(memory: Any, name: str) -> None:
    make, message = ERRORS[name]

    @job(queue="calls", retry=SOON)
    async def call() -> None:
        raise make()

    @flow("calling", retry=SOON)
    async def calling() -> None:
        raise make()

    async with memory(call, calling) as a, a.workers.background():
        id = await a.enqueue("calls")
        row = await a.wait_for_state(id, "failed")
        assert (row.attempt, row.failures, row.crashes) == (2, 2, 0)
        first, last = await a.job_events("calls", "job.failed")
        assert (first.data["willRetry"], last.data["willRetry"]) == (True, False)
        assert first.data["error"].startswith(message)
        run, status = await a.run_to_end("calling")
        assert (status, len(await a.events_of(run, "step.started"))) == ("failed", 2)
        step_failed = await a.events_of(run, "step.retrying") or await a.events_of(run, "step.failed")
        assert step_failed[0].data["error"].startswith(message)


async def test_a_retry_delay_out_of_range_on_every_store(app: Any) -> None:
    @job(queue="calls", retry=SOON)
    async def call() -> None:
        raise Throttled("429")

    async with app(call) as a, a.workers.background():
        with pytest.raises(RunFailed, match="429"):
            await a.jobs.result(await a.enqueue("calls"), timeout=20)
        assert len(await a.job_events("calls", "job.active")) == 2


async def test_a_failure_that_cannot_be_recorded_is_recorded_without_details(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = JobWork.on_failure

    def failed(self: JobWork, failure: Any) -> Any:
        if failure.error.stack is not None:
            raise ZeroDivisionError("a fault of ours")
        return original(self, failure)

    monkeypatch.setattr(JobWork, "on_failure", failed)

    @job(queue="calls", retry=SOON)
    async def call() -> None:
        raise ValueError("boom")

    async with memory(call) as a, a.workers.background():
        row = await a.wait_for_state(await a.enqueue("calls"), "failed")
        assert (row.attempt, row.failures, row.crashes) == (2, 2, 0)
        events = await a.job_events("calls", "job.failed")
        assert [(e.data["name"], e.data["willRetry"]) for e in events] == [("ValueError", True), ("ValueError", False)]
        assert (
            "boom (the rest of the attempt could not be recorded: ZeroDivisionError: a fault" in events[0].data["error"]
        )


async def test_a_wait_that_cannot_be_recorded_fails_with_the_reason(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def suspended(*_: Any) -> Any:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(Decider, "on_suspended", suspended)

    @flow("sleeper")
    async def sleeper(ctx: Any) -> None:
        ctx.emit("note.added")
        await ctx.wait.time("1h")

    async with memory(sleeper) as a, a.workers.background():
        run, status = await a.run_to_end("sleeper")
        (failed,) = await a.events_of(run, "step.failed")
        assert (status, failed.data["name"], failed.data["error"]) == (
            "failed",
            "ZeroDivisionError",
            "a fault of ours",
        )
        assert await a.waits.list(run=run) == []


async def test_an_error_while_closing_the_output_fails_the_attempt(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: Any) -> Any:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(WorkerChannel, "close_output", fail)

    @job(queue="calls")
    async def call() -> None:
        raise ValueError("boom")

    async with memory(call) as a, a.workers.background():
        row = await a.wait_for_state(await a.enqueue("calls"), "failed")
        assert b"a fault of ours" in row.error
