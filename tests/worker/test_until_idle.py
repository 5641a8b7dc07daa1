"""`run_until_idle` on every store: it ends when nothing is due, and says when more work is due."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Context, RateLimited, SyncApp, flow, job, step
from penstock.core.clock import from_iso
from penstock.core.errors import ConfigError
from penstock.testing.until import until

done: list[Any] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    done.clear()


@job(queue="mail")
async def send(n: int) -> None:
    done.append(n)


@flow("order", emits=["paid"])
async def order(n: int, ctx: Context) -> None:
    ctx.emit("paid", n)


@step(flow="order", on="paid")
async def ship(n: int) -> None:
    done.append(n)


@flow("patient", emits=[])
async def patient(_: Any, ctx: Context) -> None:
    await ctx.wait.event("never", timeout="2h")


async def test_it_works_on_everything_that_is_due_and_ends(app: Any) -> None:
    async with app(send, order, ship) as a:
        await a.jobs.enqueue_many("mail", range(30))
        run = await a.start("order", 100)
        report = await asyncio.wait_for(a.workers.run_until_idle(), 60)
        assert (report.idle, report.next) == (True, None)
        assert sorted(done) == [*range(30), 100]
        assert (await a.runs.get(run)).status == "completed"
        assert not a.workers.is_running
        report = await a.workers.run_until_idle()  # a second one finds nothing
        assert (report.idle, report.next) == (True, None)
        assert len(done) == 31


async def test_it_returns_when_the_next_job_is_due(app: Any) -> None:
    async with app(send) as a:
        before = a.clock.now_ms()
        await a.enqueue("mail", 1, delay="1h")
        await a.enqueue("mail", 2, delay="2h")
        report = await asyncio.wait_for(a.workers.run_until_idle(), 60)
        assert report.idle
        assert before + 3_590_000 < from_iso(report.next) < before + 3_700_000
        assert done == []


async def test_it_does_not_wait_for_the_timeout_of_a_wait(app: Any) -> None:
    async with app(patient) as a:
        before = a.clock.now_ms()
        run = await a.start("patient")
        report = await asyncio.wait_for(a.workers.run_until_idle(), 60)
        assert (await a.runs.get(run)).status == "waiting"
        assert before + 7_100_000 < from_iso(report.next) < before + 7_400_000


async def test_it_fires_a_slot_that_is_due_and_returns_the_next_one(app: Any) -> None:
    async with app(send) as a:
        start = datetime.now(UTC) - timedelta(minutes=1)
        await a.schedules.add("often", queue="mail", input=7, every="1h", start=start)
        report = await asyncio.wait_for(a.workers.run_until_idle(), 60)
        (schedule,) = await a.schedules.list()
        assert report.next == schedule.next_at
        assert done == [7] * schedule.fired


async def test_a_paused_queue_does_not_keep_it(app: Any) -> None:
    async with app(send) as a:
        await a.enqueue("mail", 1)
        await a.queues.pause("mail")
        report = await asyncio.wait_for(a.workers.run_until_idle(), 60)
        assert report.idle
        assert done == []


async def test_a_long_handler_is_waited_for(app: Any) -> None:
    running, end = asyncio.Event(), asyncio.Event()

    @job(queue="slow")
    async def work() -> None:
        running.set()
        await end.wait()
        done.append("slow")

    async with app(work) as a:
        await a.enqueue("slow")
        working = asyncio.create_task(a.workers.run_until_idle(concurrency=2))
        await running.wait()
        await a.workers._worker._poller.poll_once()  # it has found nothing else
        assert not working.done()
        end.set()
        assert (await asyncio.wait_for(working, 60)).idle
        assert done == ["slow"]


async def test_a_rate_limited_queue_says_when_it_goes_on(app: Any) -> None:
    @job(queue="api")
    async def call() -> None:
        raise RateLimited("1h")

    async with app(call) as a:
        before = a.clock.now_ms()
        await a.enqueue("api")
        report = await asyncio.wait_for(a.workers.run_until_idle(), 60)
        assert report.idle
        # Redis names its next look, a second later: other programs may lift the limit.
        assert from_iso(report.next) > (before if "redis" in a.settings.url else before + 3_500_000)


async def test_stopped_before_it_is_idle(memory: Any) -> None:
    end = asyncio.Event()

    @job(queue="slow")
    async def work() -> None:
        end.set()
        await asyncio.Event().wait()

    async with memory(work, grace="0s") as a:
        await a.enqueue("slow")
        working = asyncio.create_task(a.workers.run_until_idle())
        await end.wait()
        a.workers.stop()
        report = await asyncio.wait_for(working, 60)
        assert (report.idle, report.next) == (False, None)


async def test_a_job_of_another_worker_is_due_again_when_its_lease_ends(shared: Any) -> None:
    running = asyncio.Event()

    @job(queue="slow")
    async def work() -> None:
        running.set()
        await asyncio.Event().wait()

    async with shared(work, grace="0s", lease="1h") as a, shared(work, lease="1h") as other:
        await a.enqueue("slow")
        async with a.workers.background():
            await running.wait()
            before = a.clock.now_ms()
            report = await asyncio.wait_for(other.workers.run_until_idle(), 60)
            assert from_iso(report.next) >= before + 3_600_000


async def test_one_app_runs_one_worker(memory: Any) -> None:
    async with memory(send) as a, a.workers.background():
        await until(lambda: a.workers.is_running)
        with pytest.raises(ConfigError, match="already runs a worker"):
            await a.workers.run_until_idle()


def test_the_sync_app(url: str) -> None:
    with SyncApp(url, handlers=[send]) as app:
        app.enqueue("mail", 5)
        assert app.workers.run_until_idle().idle
        assert done == [5]
