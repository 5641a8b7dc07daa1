"""Limits: concurrency per worker and per queue, `max_active` over all workers, and rate limits per queue and per key."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from penstock import flow, job, step
from penstock.core.errors import DefinitionError
from penstock.handlers.handler import make_handler
from penstock.testing.clock import FakeClock
from penstock.testing.until import until


class ConcurrencyMeter:
    """Counts handlers that run at the same time, and their maximum. They end after `release` is set."""

    def __init__(self) -> None:
        self.active = 0
        self.max_active = 0
        self.started = 0
        self.release = asyncio.Event()

    async def run(self) -> None:
        self.active += 1
        self.started += 1
        self.max_active = max(self.max_active, self.active)
        await self.release.wait()
        await asyncio.sleep(0)
        self.active -= 1


@pytest.mark.spec("000-4.1.10", "002-7.2", "004-3.1")
async def test_a_worker_takes_no_more_than_its_concurrency(app: Any) -> None:
    meter = ConcurrencyMeter()

    @job(queue="q")
    async def visit() -> None:
        await meter.run()

    async with app(visit, concurrency=4) as a, a.workers.background():
        ids = await a.jobs.enqueue_many("q", range(20))
        await until(lambda: meter.active == 4)
        assert (await a.queues.counts("q"))["waiting"] == 16
        meter.release.set()
        for id in ids:
            await a.wait_for_state(id, "completed")
    assert (meter.max_active, meter.started) == (4, 20)


@pytest.mark.spec("000-4.1.10", "000-14.5", "004-3.1")
async def test_a_queue_has_a_concurrency_of_its_own(app: Any) -> None:
    narrow, wide = ConcurrencyMeter(), ConcurrencyMeter()

    @job(queue="narrow", concurrency=2)
    async def small() -> None:
        await narrow.run()

    @job(queue="wide")
    async def large() -> None:
        await wide.run()

    async with app(small, large, concurrency=10) as a, a.workers.background():
        ids = await a.jobs.enqueue_many("narrow", range(10))
        await until(lambda: narrow.active == 2)  # or the other queue may take all ten slots first
        ids += await a.jobs.enqueue_many("wide", range(20))
        await until(lambda: wide.active == 8)
        assert narrow.active == 2
        narrow.release.set()
        wide.release.set()
        for id in ids:
            await a.wait_for_state(id, "completed")
    assert narrow.max_active == 2
    assert narrow.started == 10


async def test_one_busy_queue_does_not_starve_another(app: Any) -> None:
    done: list[str] = []

    @job(queue="busy")
    async def busy() -> None:
        done.append("busy")

    @job(queue="calm")
    async def calm() -> None:
        done.append("calm")

    async with app(busy, calm, concurrency=1) as a:
        await a.jobs.enqueue_many("busy", range(100))
        ids = await a.jobs.enqueue_many("calm", range(5))
        async with a.workers.background():
            for id in ids:
                await a.wait_for_state(id, "completed")
            assert done.count("busy") < 100


async def test_max_active_holds_over_two_apps(shared: Any) -> None:
    meter = ConcurrencyMeter()

    @job(queue="q", max_active=3)
    async def visit() -> None:
        await meter.run()

    async with shared(visit) as a, shared(visit) as b:
        ids = await a.jobs.enqueue_many("q", range(20))
        async with a.workers.background(), b.workers.background():
            await until(lambda: meter.active == 3)
            meter.release.set()
            for id in ids:
                await a.wait_for_state(id, "completed")
    assert (meter.max_active, meter.started) == (3, 20)


@pytest.mark.spec("000-4.1.11", "000-14.6", "002-7.7", "002-9.7", "004-3.2")
async def test_a_rate_limit_per_queue(app: Any, clock: FakeClock) -> None:
    @job(queue="q", rate_limit="3/1m")
    async def work() -> None: ...

    async with app(work, clock=clock) as a, a.workers.background():
        await a.jobs.enqueue_many("q", range(8))
        for total in (3, 6):
            await until(lambda total=total: _done(a, total))
            a.advance_clock("59s")
            assert (await a.queues.counts("q"))["waiting"] == 8 - total
            a.advance_clock("1s")
        await until(lambda: _done(a, 8))


async def _done(app: Any, total: int) -> bool:
    """Return whether `total` jobs have completed and none is active."""
    counts = await app.queues.counts("q")
    return counts["completed"] == total and counts["active"] == 0


@pytest.mark.spec("000-4.1.11")
async def test_a_rate_limit_holds_over_two_apps(shared: Any, clock: FakeClock) -> None:
    @job(queue="q", rate_limit={"max": 4, "duration": "10s"})
    async def work() -> None: ...

    async with shared(work, clock=clock) as a, shared(work, clock=clock) as b:
        await a.jobs.enqueue_many("q", range(10))
        async with a.workers.background(), b.workers.background():
            await until(lambda: _done(a, 4))
            a.wake_all()
            b.wake_all()
            assert await _done(b, 4)
            a.advance_clock("10s", b)
            await until(lambda: _done(a, 8))


@pytest.mark.parametrize("key", ["tenant", lambda payload: payload["tenant"]], ids=["path", "function"])
async def test_a_rate_limit_per_key(app: Any, clock: FakeClock, key: Any) -> None:
    ran: Counter[str] = Counter()

    @job(queue="q", rate_limit={"max": 2, "durationMs": 60_000, "perKey": True}, rate_key=key)
    async def work(input: Any) -> None:
        ran[input["tenant"]] += 1

    async with app(work, clock=clock) as a, a.workers.background():
        await a.jobs.enqueue_many("q", [{"tenant": "greedy"}] * 5 + [{"tenant": "modest"}] * 2)
        await until(lambda: _done(a, 4))
        assert ran == {"greedy": 2, "modest": 2}
        assert (await a.queues.counts("q"))["delayed"] == 3, "the others wait for their key's next span"
        a.advance_clock("1m")
        await until(lambda: _done(a, 6))
        assert ran == {"greedy": 4, "modest": 2}
        a.advance_clock("1m")
        await until(lambda: _done(a, 7))
        assert ran == {"greedy": 5, "modest": 2}


async def test_a_redriven_dead_letter_keeps_its_priority(app: Any) -> None:
    @job(queue="q", retry=1)
    async def work() -> None:
        raise ConnectionError

    async with app(work) as a:
        await a.enqueue("q", priority=7)
        for _ in range(2):  # also the dead letter of a redriven job
            async with a.workers.background():
                await until(lambda: a.dead_letters.list("q"))
            ((id, _letter),) = await a.dead_letters.list("q")
            (new,) = (await a.dead_letters.redrive(id)).sent.values()
            redriven = await a.store.job(new)
            assert redriven is not None
            assert redriven.priority == 7


@pytest.mark.parametrize("change", [{}, {"input": {"tenant": "other"}}], ids=["same input", "new input"])
async def test_a_redriven_dead_letter_keeps_its_rate_key(app: Any, clock: FakeClock, change: Any) -> None:
    ran: list[str] = []

    @job(queue="q", retry=1, rate_limit={"max": 1, "durationMs": 60_000, "perKey": True}, rate_key="tenant")
    async def work(input: Any) -> None:
        ran.append(input["tenant"])
        raise ConnectionError

    async with app(work, clock=clock) as a, a.workers.background():

        async def has_dead_letter() -> bool:
            return bool(await a.dead_letters.list("q"))

        async def waits_for_its_key() -> bool:
            return (await a.queues.counts("q"))["delayed"] == 1

        await a.enqueue("q", {"tenant": "greedy"})
        for count in (1, 2):  # also the dead letter of a redriven job
            await until(has_dead_letter)
            ((id, _letter),) = await a.dead_letters.list("q")
            await a.dead_letters.redrive(id, **change)
            await until(waits_for_its_key)
            assert len(ran) == count
            a.advance_clock("1m")
        await until(has_dead_letter)
        assert len(ran) == 3


async def test_a_rate_limit_of_a_step(app: Any, clock: FakeClock) -> None:
    @flow("limited", emits=["item"])
    async def begin(ctx: Any) -> None:
        for i in range(5):
            ctx.emit("item", {"user": {"id": i % 2}})

    @step(
        on="item", mode="each", queue="q", rate_limit={"max": 1, "duration": "1m", "per_key": True}, rate_key="user.id"
    )
    async def work(input: Any) -> int:
        return input["user"]["id"]

    async with app(begin, work, clock=clock) as a, a.workers.background():
        run = await a.start("limited")

        async def completed(n: int) -> bool:
            return len(await a.events_of(run, "step.completed", "work")) == n

        await until(lambda: completed(2))
        a.advance_clock("1m")
        await until(lambda: completed(4))
        a.advance_clock("1m")
        assert await a.result(run, timeout=20) == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("bad", ["fast", "ten/1m", "10", {"max": 1}, {"max": 1, "duration": "1m", "extra": 1}, 5])
def test_a_rate_limit_that_cannot_be_read_is_refused(bad: Any) -> None:
    with pytest.raises(DefinitionError, match="rate_limit"):

        @job(rate_limit=bad)
        async def work() -> None: ...


@pytest.mark.parametrize("bad", [0, -1, "2", True, 1.5])
@pytest.mark.parametrize("option", ["concurrency", "max_active"])
def test_a_limit_is_a_number_of_at_least_one(option: str, bad: Any) -> None:
    with pytest.raises(DefinitionError, match=option):

        @job(**{option: bad})
        async def work() -> None: ...


def test_rate_keys_keep_values_of_different_types_apart() -> None:
    async def send(input: Any) -> None: ...

    by_path = make_handler(send, "send", {"rate_limit": "1/1m", "rate_key": "to"})
    keys = [by_path.make_rate_key({"to": to}) for to in (1, "1", True, "true", None, "null", [1], "[1]", 1.5)]
    assert len(set(keys)) == len(keys)
    by_function = make_handler(send, "send", {"rate_limit": "1/1m", "rate_key": lambda input: input})
    assert by_function.make_rate_key(1) != by_function.make_rate_key("1")
    assert by_function.make_rate_key({1, 2}) is not None
