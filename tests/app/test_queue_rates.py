"""How many jobs were added, completed, failed and retried by minute, and how long the oldest one waits."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import job
from penstock.commit import rate_counter
from penstock.core.errors import StoreUnavailable, UnknownQueue
from penstock.core.outage_retry import OutageLog
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultStore
from penstock.testing.until import until


@job(queue="work", retry={"attempts": 2, "backoff": {"type": "fixed", "delay": 0}})
async def work(ok: bool) -> None:
    if not ok:
        raise ValueError("no")


async def sums(app: Any, queue: str) -> tuple[int, int, int, int]:
    rows = await app.queues.rates(queue)
    return tuple(sum(getattr(row, name) for row in rows) for name in ("added", "completed", "failed", "retried"))  # type: ignore[return-value]


async def test_rates_count_what_happened(app: Any) -> None:
    async with app(work) as mine:
        for n in range(5):
            await mine.enqueue(work, n != 0, key=f"job-{n}")
        await mine.enqueue(work, True, key="job-1")  # exists already
        async with mine.workers.background():
            for n in range(5):
                await mine.wait_for_state(f"job-{n}", "completed", "failed")
        assert await sums(mine, "work") == (5, 4, 1, 1)
        assert (await sums(mine, "work-dlq"))[0] == 1
        with pytest.raises(UnknownQueue, match="did you mean 'work'"):
            await mine.queues.rates("wrk")


async def test_every_minute_has_a_row(app: Any) -> None:
    clock = FakeClock()
    async with app(work, clock=clock) as mine:
        await mine.enqueue(work, True)
        mine.advance_clock("3m")
        await mine.enqueue(work, True)
        rows = await mine.queues.rates("work", since="4m")
        assert [row.added for row in rows] == [0, 1, 0, 0, 1]
        assert len({row.at for row in rows}) == 5
        assert len(await mine.queues.rates("work", since="30d")) == 7 * 24 * 60 + 1


async def test_other_processes_see_the_counts_after_a_flush(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_counter, "FLUSH_INTERVAL_S", 0.0)
    async with shared(work) as one, shared(work) as other:
        await one.enqueue(work, True)

        async def is_counted() -> bool:
            return await sums(other, "work") == (1, 0, 0, 0)

        await until(is_counted, 20)


async def test_counts_are_written_when_the_app_closes(shared: Any) -> None:
    async with shared(work) as one:
        await one.enqueue(work, True)
    async with shared(work) as other:
        assert await sums(other, "work") == (1, 0, 0, 0)


async def test_counts_wait_for_a_store_that_is_away() -> None:
    from penstock import App
    from penstock.stores.sqlite import SqliteStore

    class Away:
        times = 2

        async def on_call(self, method: str, when: str) -> None:
            if method == "add_counts" and when == "before" and self.times:
                self.times -= 1
                raise StoreUnavailable("away")

        def on_blocking_call(self, method: str, when: str) -> None: ...

    async with App(":memory:", handlers=[work], store=FaultStore(SqliteStore(), Away())) as app:  # type: ignore[arg-type]
        await app.enqueue(work, True)
        assert await sums(app, "work") == (0, 0, 0, 0)
        await app.enqueue(work, True)
        assert await sums(app, "work") == (0, 0, 0, 0)
        assert await sums(app, "work") == (2, 0, 0, 0)


async def test_a_queue_shows_how_long_its_oldest_job_waits(app: Any) -> None:
    clock = FakeClock()
    async with app(work, clock=clock) as mine:
        assert [(row.oldest_at, row.age_ms) for row in await mine.queues.list()] == [(None, 0)]
        await mine.enqueue(work, True)
        mine.advance_clock("90s")
        await mine.enqueue(work, True)
        (queue,) = await mine.queues.list()
        assert queue.age_ms == 90_000


async def test_counts_that_pile_up_while_the_store_is_away_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away:
        async def add_counts(self, _rows: Any) -> None:
            raise StoreUnavailable("away")

    counter = rate_counter.RateCounter(Away(), OutageLog())  # type: ignore[arg-type]
    for limit, kept in ((1, {(1, "work", "added"): 2}), (0, {})):
        monkeypatch.setattr(rate_counter, "MAX_PENDING", limit)
        counter._counts = {(1, "work", "added"): 2}
        await counter.flush()
        assert counter._counts == kept
