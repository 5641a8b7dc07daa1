"""Instrumentation on every store: the events that listeners get, and that a listener cannot harm the work."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from penstock import Context, RateLimited, flow, job
from penstock.telemetry.instrumentation import (
    AttemptEnded,
    AttemptStarted,
    BatchCommitted,
    Instrumentation,
    InstrumentationEvent,
    JobClaimed,
    JobEnqueued,
    LeaseLost,
    ScheduleSlot,
    WaitChanged,
)
from penstock.testing import TestApp
from penstock.testing.until import until


class Recorder:
    """A listener that keeps every event."""

    def __init__(self) -> None:
        self.events: list[InstrumentationEvent] = []

    def __call__(self, event: InstrumentationEvent) -> None:
        self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def count(self) -> Counter[str]:
        return Counter(type(event).__name__ for event in self.events)


@job(queue="mail")
async def send(n: int) -> int:
    return n


@job(queue="bad", retry={"attempts": 2, "backoff": {"type": "fixed", "delayMs": 1}})
async def fail() -> None:
    raise ValueError("boom")


async def test_a_job_is_reported_from_enqueue_to_end(app: Any) -> None:
    recorder = Recorder()
    async with app(send, listeners=[recorder]) as a, a.workers.background(name="w1"):
        ids = await a.jobs.enqueue_many("mail", range(20))
        for id in ids:
            await a.jobs.result(id, timeout=20)
        await until(lambda: len(recorder.of(AttemptEnded)) == 20)
    enqueued, claimed = recorder.of(JobEnqueued), recorder.of(JobClaimed)
    assert [(one.job, one.queue, one.name) for one in enqueued] == [(id, "mail", "send") for id in ids]
    assert sorted(one.job for one in claimed) == sorted(ids)
    assert {(one.attempt, one.worker, one.run) for one in claimed} == {(1, "w1", None)}
    assert sorted(one.job for one in recorder.of(AttemptStarted)) == sorted(ids)
    ended = recorder.of(AttemptEnded)
    assert {(one.outcome, one.is_recorded, one.error) for one in ended} == {("completed", True, None)}
    assert all(one.duration_ms >= 0 for one in ended)
    batches = recorder.of(BatchCommitted)
    assert sum(one.units for one in batches) >= 21
    assert all(one.duration_s > 0 and not one.refused for one in batches)


async def test_failures_name_their_error(app: Any) -> None:
    recorder = Recorder()
    async with app(fail, listeners=[recorder]) as a, a.workers.background():
        await a.wait_for_state(await a.enqueue("bad"), "failed")
        await until(lambda: len(recorder.of(AttemptEnded)) == 2)
    ended = recorder.of(AttemptEnded)
    assert [(one.attempt, one.outcome, one.error) for one in ended] == [
        (1, "retrying", "ValueError"),
        (2, "failed", "ValueError"),
    ]
    assert [one.queue for one in recorder.of(JobEnqueued)] == ["bad", "bad-dlq"]


async def test_waits_are_reported_when_they_are_pending_and_settled(app: Any) -> None:
    recorder = Recorder()

    @flow("ask", emits=[])
    async def ask(x: Any, ctx: Context) -> Any:
        return (await ctx.wait.event("paid")).data

    async with app(ask, listeners=[recorder]) as a, a.workers.background():
        run = await a.start("ask")
        await until(lambda: any(one.state == "pending" for one in recorder.of(WaitChanged)), 20)
        await a.emit("paid", 7)
        assert await a.result(run, timeout=20) == 7
        await until(lambda: len(recorder.of(AttemptEnded)) >= 2)
    waits = recorder.of(WaitChanged)
    assert (waits[0].state, waits[0].kind, waits[0].run) == ("pending", "event", run)
    assert [one.state for one in waits if one.wait == waits[0].wait] == ["pending", "resolved"]
    of_run = [one for one in recorder.of(AttemptEnded) if one.run == run]
    assert [(one.flow, one.step, one.outcome) for one in of_run] == [
        ("ask", "ask", "suspended"),
        ("ask", "ask", "completed"),
    ]


async def test_schedule_slots_are_reported(url: str) -> None:
    recorder = Recorder()
    async with TestApp(url, handlers=[send], listeners=[recorder]) as app:
        await app.schedules.add("often", queue="mail", input=1, every="1h")
        await app.advance("3h")
    slots = recorder.of(ScheduleSlot)
    assert [one.schedule for one in slots] == ["often"] * len(slots)
    assert len(slots) >= 3
    assert all(one.next_ms - one.slot_ms == 3_600_000 and not one.is_skipped for one in slots)


async def test_a_lost_lease_is_reported(app: Any) -> None:
    recorder, running, end = Recorder(), asyncio.Event(), asyncio.Event()

    @flow("slow", emits=[])
    async def slow() -> None:
        running.set()
        await end.wait()

    async with app(slow, listeners=[recorder], lease="600ms") as a, a.workers.background(name="w1"):
        run = await a.start("slow")
        await running.wait()
        await a.runs.cancel(run)
        await until(lambda: recorder.of(LeaseLost), 20)
        await until(lambda: recorder.of(AttemptEnded), 20)
    (lost,) = recorder.of(LeaseLost)
    assert (lost.run, lost.queue, lost.attempt, lost.worker) == (run, "default", 1, "w1")
    (ended,) = recorder.of(AttemptEnded)
    assert ended.outcome == "interrupted"


async def test_a_rate_limit_has_its_own_outcome(memory: Any) -> None:
    recorder = Recorder()
    calls: list[int] = []

    @job(queue="api")
    async def call() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RateLimited("10ms")

    async with memory(call, listeners=[recorder]) as a, a.workers.background():
        await a.jobs.result(await a.enqueue("api"), timeout=20)
        await until(lambda: len(recorder.of(AttemptEnded)) == 2)
    assert [one.outcome for one in recorder.of(AttemptEnded)] == ["rate_limited", "completed"]


async def test_a_listener_that_raises_is_logged_and_work_continues(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()

    def broken(event: InstrumentationEvent) -> None:
        raise ZeroDivisionError("a listener's own")

    with caplog.at_level(logging.ERROR, "penstock.telemetry"):
        async with app(send, listeners=[broken, recorder]) as a, a.workers.background():
            assert await a.jobs.result(await a.enqueue("mail", 5), timeout=20) == 5
            await until(lambda: recorder.of(AttemptEnded))
    assert "listener <function" in caplog.text
    assert recorder.count()["JobEnqueued"] == 1


def test_without_listeners_there_is_no_instrumentation() -> None:
    assert Instrumentation.of([]) is None


async def test_an_app_without_listeners_has_no_instrumentation(memory: Any) -> None:
    async with memory(send) as a:
        assert a._runtime.instrumentation is None
        assert a._committer._instrumentation is None
