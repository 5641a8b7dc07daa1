"""Counts by minute, and since when the oldest job of a queue waits."""

from __future__ import annotations

from ...ports.monitoring import MINUTE_MS, RATES_KEPT_MS, MinuteCounts
from ...ports.store import Retention, Store
from ..clock import FakeClock
from .samples import apply, claim_one, job, unit
from .store_under_test import StoreUnderTest


class QueueRatesContract(StoreUnderTest):
    """Counts are added up by queue and minute, and kept for a week."""

    async def test_counts_add_up(self, store: Store) -> None:
        await store.add_counts([MinuteCounts("a", 0, added=2), MinuteCounts("b:c", MINUTE_MS, failed=1)])
        await store.add_counts([MinuteCounts("a", 0, 1, 2, 3, 4), MinuteCounts("a", MINUTE_MS, retried=5)])
        assert await store.rates("a", 0) == [
            MinuteCounts("a", 0, 3, 2, 3, 4),
            MinuteCounts("a", MINUTE_MS, retried=5),
        ]
        assert await store.rates("a", 1) == [MinuteCounts("a", MINUTE_MS, retried=5)]
        assert await store.rates("b:c", 0) == [MinuteCounts("b:c", MINUTE_MS, failed=1)]
        assert [(one.minute, one.queue) for one in await store.rates(None, 0)] == [
            (0, "a"),
            (MINUTE_MS, "a"),
            (MINUTE_MS, "b:c"),
        ]
        assert await store.rates("none", 0) == []
        await store.add_counts([])

    async def test_large_counts_are_exact(self, store: Store) -> None:
        await store.add_counts([MinuteCounts("a", 0, added=2**40 + 1)])
        await store.add_counts([MinuteCounts("a", 0, added=1)])
        assert await store.rates("a", 0) == [MinuteCounts("a", 0, added=2**40 + 2)]

    async def test_a_sweep_removes_counts_after_a_week(self, store: Store, clock: FakeClock) -> None:
        now = clock.now_ms() // MINUTE_MS * MINUTE_MS
        old = now - RATES_KEPT_MS - 2 * 86_400_000  # a store may keep whole days
        kept = MinuteCounts("a", now - RATES_KEPT_MS + MINUTE_MS, added=1)
        await store.add_counts([MinuteCounts("a", old, added=1), MinuteCounts("b", old, added=1), kept])
        assert (await store.sweep(Retention(), limit=1))["others"] == 1
        assert (await store.sweep(Retention()))["others"] == 1
        assert await store.rates(None, 0) == [kept]


class OldestWaitingContract(StoreUnderTest):
    """A queue shows since when the job that is next in line waits."""

    async def oldest(self, store: Store) -> dict[str, int | None]:
        return {row.name: row.oldest for row in await store.queues()}

    async def test_the_first_waiting_job_counts(self, store: Store, clock: FakeClock) -> None:
        first = clock.now_ms()
        await apply(store, unit(jobs=[job("a", queue="q")]))
        clock.advance("5s")
        await apply(store, unit(jobs=[job("b", queue="q"), job("c", queue="r")]))
        assert await self.oldest(store) == {"q": first, "r": first + 5000}
        await claim_one(store, "q")
        assert await self.oldest(store) == {"q": first + 5000, "r": first + 5000}
        await claim_one(store, "q")
        assert (await self.oldest(store))["q"] is None

    async def test_the_first_job_of_every_priority_counts(self, store: Store, clock: FakeClock) -> None:
        first = clock.now_ms()
        await apply(store, unit(jobs=[job("low", queue="q", priority=9), job("lower", queue="q", priority=10)]))
        clock.advance("5s")
        await apply(store, unit(jobs=[job("high", queue="q"), job("middle", queue="q", priority=3)]))
        assert await self.oldest(store) == {"q": first}
        for wanted in ("high", "middle", "low"):
            assert (await claim_one(store, "q")).job == wanted
        assert await self.oldest(store) == {"q": first}

    async def test_a_delayed_job_counts_from_when_it_is_due(self, store: Store, clock: FakeClock) -> None:
        due = clock.now_ms() + 10_000
        await apply(store, unit(jobs=[job("a", queue="q", due=due)]))
        assert await self.oldest(store) == {"q": None}
        clock.advance("15s")
        assert await self.oldest(store) == {"q": due}, "no worker has asked for it yet"
        clock.advance("5s")
        await apply(store, unit(jobs=[job("b", queue="q")]))
        assert await self.oldest(store) == {"q": due}
