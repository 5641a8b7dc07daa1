"""An outage of the store is nobody's failure: attempts wait for it, wake-ups survive a close, and the log stays short."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from penstock import flow, job
from penstock.core.errors import StoreClosed, StoreUnavailable
from penstock.core.outage_retry import OutageLog

SOON = {"attempts": 1, "backoff": {"type": "fixed", "delay": "1ms"}}


async def test_a_step_that_ends_because_a_store_is_away_uses_up_no_attempt(app: Any) -> None:
    seen: list[int] = []

    @flow("work", retry=SOON)
    async def work(ctx: Any) -> str:
        seen.append(ctx.attempt)
        assert await ctx.run("call", lambda: 1) == 1
        ctx.emit("tried", ctx.attempt)
        if len(seen) < 3:
            raise StoreUnavailable("the other store is away")
        return "done"

    async with app(work) as a, a.workers.background():
        run, status = await a.run_to_end("work")
        assert (status, seen) == ("completed", [1, 2, 3])
        returned = await a.events_of(run, "step.returned")
        assert [event.data["reason"] for event in returned] == ["the other store is away"] * 2
        assert [event.data for event in await a.events_of(run, "tried")] == [3]
        assert await a.events_of(run, "step.failed") == []


async def test_a_job_that_ends_because_a_store_is_away_uses_up_no_attempt(app: Any) -> None:
    seen: list[int] = []

    @job(queue="q", retry=SOON)
    def work(ctx: Any) -> str:
        seen.append(ctx.attempt)
        if len(seen) < 3:
            raise StoreUnavailable("the other store is away")
        return "done"

    async with app(work) as a, a.workers.background():
        assert await a.jobs.result(await a.enqueue("q"), timeout=20) == "done"
        assert seen == [1, 2, 3]
        assert [event.kind for event in await a.job_events("q", "job.returned", "job.failed")] == ["job.returned"] * 2


async def test_a_store_that_is_closed_is_a_failure(app: Any) -> None:
    @flow("work")
    async def work() -> None:
        raise StoreClosed("you closed it")

    async with app(work) as a, a.workers.background():
        assert (await a.run_to_end("work"))[1] == "failed"


async def test_a_commit_followed_at_once_by_a_close_wakes_an_idle_worker(shared: Any) -> None:
    @job(queue="q")
    async def work(n: int) -> int:
        return n

    async with shared(work) as worker, worker.workers.background():
        for n in range(3):
            await asyncio.sleep(0.2)  # it is idle
            async with shared(work) as other:
                id = await other.enqueue("q", n)
            assert await worker.jobs.result(id, timeout=30) == n


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_warnings_of_an_outage_back_off_and_end_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.store")
    time = Time()
    outages = OutageLog(time)
    for _ in range(100):
        outages.report_failure("cannot claim jobs, retrying", StoreUnavailable("down"))
        time.now += 1
    assert [record.getMessage() for record in caplog.records] == ["cannot claim jobs, retrying: down"] * 4
    outages.report_answer()
    outages.report_answer()
    assert [record.getMessage() for record in caplog.records][4:] == ["the store answers again after 1 min 40 s"]


def test_short_outages_in_a_row_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    outages = OutageLog(time)
    for _ in range(50):
        outages.report_failure("retrying", StoreUnavailable("cut"))
        outages.report_answer()
        time.now += 0.1
    assert [record.getMessage() for record in caplog.records] == ["retrying: cut", "the store answers again after 0 ms"]
