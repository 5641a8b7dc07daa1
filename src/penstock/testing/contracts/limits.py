"""Limits: paused queues, max_active and rate limits."""

from __future__ import annotations

from ...ports.store import Store
from ...ports.unit import Completed, RateLimit, Released
from ..clock import FakeClock
from .samples import add, add_and_claim, apply, claim, claim_one, claim_request, job, names, run, unit
from .store_under_test import StoreUnderTest

TWO_A_SECOND = RateLimit(2, 1000)
ONE_A_SECOND_EACH = RateLimit(1, 1000, per_key=True)


class LimitsContract(StoreUnderTest):
    """Limits apply to all workers together, and only for their time."""

    async def test_no_job_of_a_paused_queue_is_claimed(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("j"), job("later", due=clock.now_ms() + 1000), job("k", "blue"))
        await store.pause("orders")
        assert names(await claim(store, "orders", "blue")) == ["k"]
        clock.advance("2s")
        assert await claim(store) == []
        await store.resume("orders")
        assert names(await claim(store)) == ["j", "later"]

    async def test_a_paused_queue_accepts_jobs_and_outcomes(self, store: Store) -> None:
        one = await add_and_claim(store, "j")
        await store.pause("orders")
        await apply(store, unit(claim=one, outcome=Completed(), jobs=[job("next")]))
        (queue,) = await store.queues()
        assert (queue.paused, queue.counts["completed"], queue.counts["waiting"]) == (True, 1, 1)
        assert await claim(store) == []

    async def test_a_queue_paused_before_its_first_job(self, store: Store) -> None:
        await store.pause("orders")
        await add(store, job("j"))
        assert await claim(store) == []

    async def test_max_active_counts_every_worker(self, store: Store) -> None:
        await add(store, *(job(f"j{n}") for n in range(5)))
        first = await claim(store, max_active=3, limit=2, worker="w1")
        assert names(first) == ["j0", "j1"]
        assert names(await claim(store, max_active=3, worker="w2")) == ["j2"]
        assert await claim(store, max_active=3, worker="w3") == []
        await apply(store, unit(claim=first[0], outcome=Completed()))
        assert names(await claim(store, max_active=3, worker="w3")) == ["j3"]

    async def test_max_active_lower_than_the_active_jobs(self, store: Store) -> None:
        await add(store, *(job(f"j{n}") for n in range(5)))
        await claim(store, limit=3)
        assert await claim(store, max_active=1) == []

    async def test_max_active_is_freed_when_a_worker_dies(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("a"), job("b"))
        assert names(await claim(store, max_active=1)) == ["a"]
        found = await store.claim(claim_request(max_active=1))
        assert (found.claims, found.next_due) == ([], clock.now_ms() + 30_000)
        clock.advance("30s")
        assert names(await claim(store, max_active=1)) == ["a"]

    async def test_rate_of_a_queue_by_windows(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(job(f"j{n}") for n in range(5)))
        assert names(await claim(store, rate=TWO_A_SECOND)) == ["j0", "j1"]
        end = clock.now_ms() + 1000
        held_back = await store.claim(claim_request(rate=TWO_A_SECOND, lease="1h", worker="w2"))
        assert (held_back.claims, held_back.next_due) == ([], end)
        clock.set_ms(end - 1)
        assert await claim(store, rate=TWO_A_SECOND) == []
        clock.set_ms(end)
        assert names(await claim(store, rate=TWO_A_SECOND)) == ["j2", "j3"]

    async def test_rate_is_used_up_over_several_claims(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(job(f"j{n}") for n in range(5)))
        assert names(await claim(store, rate=TWO_A_SECOND, limit=1)) == ["j0"]
        clock.advance("500ms")
        assert names(await claim(store, rate=TWO_A_SECOND)) == ["j1"]
        clock.advance("500ms")  # the window starts with its first claim
        assert names(await claim(store, rate=TWO_A_SECOND)) == ["j2", "j3"]

    async def test_rate_holds_for_a_clock_slightly_behind(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(job(f"j{n}") for n in range(5)))
        await claim(store, rate=TWO_A_SECOND)
        clock.set_ms(clock.now_ms() - 5)
        assert await claim(store, rate=TWO_A_SECOND) == []

    async def test_rate_does_not_block_after_the_clock_went_far_back(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(job(f"j{n}") for n in range(5)))
        await claim(store, rate=TWO_A_SECOND)
        clock.set_ms(clock.now_ms() - 3_600_000)
        assert names(await claim(store, rate=TWO_A_SECOND)) == ["j2", "j3"]

    async def test_rate_counts_claims_and_not_completions(self, store: Store) -> None:
        await add(store, *(job(f"j{n}") for n in range(3)))
        for one in await claim(store, rate=TWO_A_SECOND):
            await apply(store, unit(claim=one, outcome=Completed()))
        assert await claim(store, rate=TWO_A_SECOND) == []

    async def test_rate_of_one_queue_leaves_others_alone(self, store: Store) -> None:
        await add(store, job("a1", "a"), job("a2", "a"), job("b1", "b"), job("b2", "b"))
        one = RateLimit(1, 1000)
        assert names(await claim(store, "a", "b", rate=one)) == ["a1", "b1"]

    async def test_rate_keeps_the_order_of_priorities(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(job(f"j{n}") for n in range(4)))
        await claim(store, rate=TWO_A_SECOND)
        await add(store, job("urgent", priority=-1))
        clock.advance("1s")
        assert names(await claim(store, rate=TWO_A_SECOND)) == ["urgent", "j2"]

    async def test_rate_of_each_key_by_windows(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(job(f"{key}{n}", rate_key=key) for n in range(3) for key in ("ann", "bob")))
        rate = ONE_A_SECOND_EACH
        assert names(await claim(store, rate=rate)) == ["ann0", "bob0"]
        held_back = await store.claim(claim_request(rate=rate, lease="1h"))
        assert (held_back.claims, held_back.next_due) == ([], clock.now_ms() + 1000)
        clock.advance("999ms")
        assert await claim(store, rate=rate) == []
        clock.advance("1ms")
        assert names(await claim(store, rate=rate)) == ["ann1", "bob1"]
        clock.advance("1s")
        assert names(await claim(store, rate=rate)) == ["ann2", "bob2"]

    async def test_a_busy_key_does_not_hide_the_others(self, store: Store) -> None:
        await add(store, *(job(f"hot{n}", rate_key="hot") for n in range(250)), job("cold", rate_key="cold"))
        assert names(await claim(store, rate=ONE_A_SECOND_EACH, limit=5)) == ["hot0", "cold"]

    async def test_jobs_without_a_key_share_one(self, store: Store) -> None:
        await add(store, job("a"), job("b"), job("c", rate_key="c"))
        assert names(await claim(store, rate=ONE_A_SECOND_EACH)) == ["a", "c"]

    async def test_jobs_of_a_closed_run_use_up_no_rate(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r"), job("r.a.2", run="r")]))
        await add(store, job("live"))
        await apply(store, unit(run=run("r", 1, status="cancelled", closed=True)))
        assert names(await claim(store, rate=TWO_A_SECOND)) == ["live"]

    async def test_rate_and_max_active_hold_together(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(job(f"j{n}") for n in range(6)))
        rate = RateLimit(3, 1000)
        assert len(await claim(store, rate=rate, max_active=2)) == 2
        clock.advance("1s")
        assert await claim(store, rate=rate, max_active=2) == []
        assert names(await claim(store, rate=rate, max_active=4)) == ["j2", "j3"]

    async def test_a_rate_that_is_reset_starts_a_new_window(self, store: Store) -> None:
        await add(store, *(job(f"j{n}") for n in range(3)), *(job(f"k{n}", "other") for n in range(2)))
        one_an_hour = RateLimit(1, 3_600_000)
        assert names(await claim(store, "orders", "other", rate=one_an_hour)) == ["j0", "k0"]
        await store.reset_rates("orders")
        assert names(await claim(store, "orders", "other", rate=RateLimit(5, 1000))) == ["j1", "j2", "k1"]
        await store.reset_rates("orders")
        await store.reset_rates("nothing")
        assert await claim(store, "other", rate=one_an_hour) == []

    async def test_a_reset_does_not_release_a_held_queue(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("a"), job("b"))
        one = await claim_one(store)
        await apply(store, unit(claim=one, outcome=Released(clock.now_ms(), hold_until=clock.now_ms() + 60_000)))
        await store.reset_rates("orders")
        assert await claim(store) == []

    async def test_a_released_job_waits_until_it_is_due(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("a"), job("b"))
        one = await claim_one(store)
        await apply(store, unit(claim=one, outcome=Released(clock.now_ms() + 100)))
        assert names(await claim(store)) == ["b"]
        clock.advance("100ms")
        assert names(await claim(store)) == ["a"]
