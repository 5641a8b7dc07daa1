"""The keys of a queue: how many open jobs have each order key or rate key."""

from __future__ import annotations

from ...ports.monitoring import KeyRow
from ...ports.store import Store
from ...ports.unit import Completed
from ..clock import FakeClock
from .samples import add, apply, claim_one, job, unit
from .store_under_test import StoreUnderTest


class QueueKeysContract(StoreUnderTest):
    """Open jobs are counted by key and state; finished ones and other queues are not."""

    async def test_open_jobs_are_counted_by_key_and_state(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("done", rate_key="ann"))
        await apply(store, unit(claim=await claim_one(store), outcome=Completed()))
        await add(store, job("busy", rate_key="ann"))
        await claim_one(store)
        await add(store, *(job(f"a{n}", rate_key="ann", priority=n) for n in range(3)), job("b", rate_key="bob"))
        await add(store, job("plain"), job("elsewhere", "other", rate_key="ann"))
        await add(store, job("later", rate_key="bob", due=clock.now_ms() + 60_000))
        assert await store.open_keys("orders", 100) == [
            KeyRow("ann", "active", 1),
            KeyRow("ann", "waiting", 3),
            KeyRow("bob", "delayed", 1),
            KeyRow("bob", "waiting", 1),
        ]
        assert await store.open_keys("none", 100) == []

    async def test_an_order_key_counts_before_a_rate_key(self, store: Store) -> None:
        await add(store, *(job(f"j{n}", order_key="row-7", rate_key="ann") for n in range(3)))
        assert await store.open_keys("orders", 100) == [KeyRow("row-7", "held", 2), KeyRow("row-7", "waiting", 1)]

    async def test_only_the_first_jobs_of_each_state_are_read(self, store: Store) -> None:
        await add(store, *(job(f"j{n}", rate_key="ann" if n < 5 else "bob") for n in range(10)))
        assert await store.open_keys("orders", 5) == [KeyRow("ann", "waiting", 5)]
