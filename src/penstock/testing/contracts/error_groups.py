"""Dead letters by error group: counted by the store, without reading them."""

from __future__ import annotations

from ...ports.monitoring import ErrorGroupRow
from ...ports.store import Store
from ..clock import FakeClock
from .samples import add, apply, claim_one, job, unit
from .store_under_test import StoreUnderTest


class ErrorGroupsContract(StoreUnderTest):
    """Jobs with an error group are counted while they wait."""

    async def test_groups_are_counted_the_largest_first(self, store: Store, clock: FakeClock) -> None:
        first = clock.now_ms()
        await add(store, job("a", "q-dlq", error_group="g1"), job("b", "q-dlq", error_group="g2"))
        clock.advance("5s")
        await add(store, job("c", "q-dlq", error_group="g2"), job("d", "r-dlq", error_group="g2"), job("e", "q-dlq"))
        assert await store.error_groups("q-dlq") == [
            ErrorGroupRow("g2", 2, first, first + 5000, "c"),
            ErrorGroupRow("g1", 1, first, first, "a"),
        ]
        assert await store.error_groups("r-dlq") == [ErrorGroupRow("g2", 1, first + 5000, first + 5000, "d")]
        assert await store.error_groups("none") == []

    async def test_the_jobs_of_a_group_come_in_pages(self, store: Store) -> None:
        await add(store, *(job(f"j{n}", "q-dlq", error_group=f"g{n % 2}") for n in range(10)))
        assert await store.jobs_of_error_group("q-dlq", "g1", limit=3) == ["j1", "j3", "j5"]
        assert await store.jobs_of_error_group("q-dlq", "g1", after="j5") == ["j7", "j9"]
        assert await store.jobs_of_error_group("q-dlq", "g1", after="j9") == []
        assert await store.jobs_of_error_group("q-dlq", "g2") == []

    async def test_removed_jobs_leave_their_group(self, store: Store) -> None:
        await add(store, *(job(f"j{n}", "q-dlq", error_group="g") for n in range(4)))
        await add(store, job("k", "q-dlq", error_group="h"))
        await store.remove("j0")
        await apply(store, unit(removes=["j1"], jobs=[job("new", "q")]))
        await store.remove("k")
        assert [(row.group, row.count) for row in await store.error_groups("q-dlq")] == [("g", 2)]
        assert await store.drain("q-dlq") == 2
        assert await store.error_groups("q-dlq") == []

    async def test_a_dead_letter_is_claimed_like_any_job(self, store: Store) -> None:
        await add(store, job("a", "q-dlq", error_group="g"))
        assert (await claim_one(store, "q-dlq")).job == "a"
