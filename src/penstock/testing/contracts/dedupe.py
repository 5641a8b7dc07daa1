"""Deduplication keys, and queues that are held."""

from __future__ import annotations

import asyncio
from typing import Any

from ...ports.store import Store
from ...ports.unit import Committed, Completed, Conflict, Dead, Dedupe, KeepJobs, NewJob, Released, RetryAt
from ..clock import FakeClock
from .samples import (
    ERROR,
    add_and_claim,
    apply,
    claim,
    claim_one,
    claim_request,
    event,
    job,
    names,
    run,
    state_of,
    unit,
)
from .store_under_test import StoreUnderTest

MINUTE = Dedupe("ada", 60_000)


class DedupeContract(StoreUnderTest):
    """One job per key."""

    async def test_a_key_that_is_held_adds_no_job(self, store: Store) -> None:
        assert await _add(store, _job("a")) == (True, None)
        assert await _add(store, _job("b")) == (False, "a")
        assert await state_of(store, "b") is None

    async def test_a_deduplicated_job_appends_no_added_event(self, store: Store) -> None:
        await _add(store, _job("a", added=event("job.added", "nq:queue:orders")))
        await _add(store, _job("b", added=event("job.added", "nq:queue:orders")))
        assert len(await store.read("nq:queue:orders")) == 1

    async def test_other_keys_and_other_queues_are_independent(self, store: Store) -> None:
        await _add(store, _job("a"))
        assert await _add(store, _job("b", Dedupe("bob"))) == (True, None)
        assert await _add(store, job("c", "letters", dedupe=Dedupe("ada"))) == (True, None)
        assert await _add(store, job("d")) == (True, None)

    async def test_the_key_is_held_until_the_job_has_ended(self, store: Store, clock: FakeClock) -> None:
        await _add(store, _job("a"))
        first = await claim_one(store)
        assert await _add(store, _job("b")) == (False, "a")
        await apply(store, unit(claim=first, outcome=RetryAt(clock.now_ms() + 1000, ERROR)))
        assert await _add(store, _job("c")) == (False, "a")
        clock.advance("1s")
        await apply(store, unit(claim=await claim_one(store), outcome=Completed()))
        assert await _add(store, _job("d")) == (True, None)

    async def test_a_failed_job_releases_its_key(self, store: Store) -> None:
        await _add(store, _job("a"))
        await apply(store, unit(claim=await claim_one(store), outcome=Dead(ERROR)))
        assert await _add(store, _job("b")) == (True, None)

    async def test_a_ttl_holds_the_key_after_the_job_has_ended(self, store: Store, clock: FakeClock) -> None:
        await _add(store, _job("a", MINUTE))
        await apply(store, unit(claim=await claim_one(store), outcome=Completed(keep=KeepJobs(0))))
        clock.advance("59s")
        assert await _add(store, _job("b", MINUTE)) == (False, "a")
        clock.advance("1s")
        assert await _add(store, _job("c", MINUTE)) == (True, None)

    async def test_a_key_is_released_after_its_ttl(self, store: Store, clock: FakeClock) -> None:
        await _add(store, _job("a", MINUTE))
        clock.advance("60s")
        assert await _add(store, _job("b", MINUTE)) == (True, None)
        assert await _add(store, _job("c", MINUTE)) == (False, "b")

    async def test_delayed_and_prioritized_jobs_hold_keys(self, store: Store, clock: FakeClock) -> None:
        await _add(store, _job("a", due=clock.now_ms() + 1000))
        assert await _add(store, _job("b", priority=3)) == (False, "a")
        await _add(store, _job("c", Dedupe("bob"), priority=3))
        assert await _add(store, _job("d", Dedupe("bob"), due=clock.now_ms() + 1000)) == (False, "c")

    async def test_a_removed_job_releases_its_key(self, store: Store) -> None:
        await _add(store, _job("a", MINUTE))
        await store.remove("a")
        assert await _add(store, _job("b", MINUTE)) == (True, None)
        await store.drain("orders")
        assert await _add(store, _job("c", MINUTE)) == (True, None)

    async def test_an_existing_id_is_not_reported_as_deduplicated(self, store: Store) -> None:
        await _add(store, _job("a"))
        assert await _add(store, _job("a")) == (False, None)
        await _add(store, job("b"))
        assert await _add(store, _job("b")) == (False, None)

    async def test_the_first_job_of_a_unit_takes_the_key(self, store: Store) -> None:
        receipt = await apply(store, unit(jobs=[_job("a"), job("x"), _job("b"), _job("c")]))
        assert isinstance(receipt, Committed)
        assert (receipt.added, receipt.deduplicated) == ([True, True, False, False], {2: "a", 3: "a"})

    async def test_the_first_job_of_a_commit_takes_the_key(self, store: Store) -> None:
        reply = await store.commit([unit(jobs=[_job(id)]) for id in "abc"])
        assert [r.added for r in reply.receipts if isinstance(r, Committed)] == [[True], [False], [False]]

    async def test_a_refused_unit_takes_no_key(self, store: Store) -> None:
        reply = await store.commit([unit(run=run("r1", 7), jobs=[_job("a")]), unit(jobs=[_job("b")])])
        assert isinstance(reply.receipts[0], Conflict)
        assert isinstance(reply.receipts[1], Committed)
        assert reply.receipts[1].added == [True]
        assert await _add(store, _job("c")) == (False, "b")

    async def test_concurrent_adds_of_one_key_add_one_job(self, store: Store) -> None:
        replies = await asyncio.gather(*(_add(store, _job(f"j{n}")) for n in range(20)))
        (winner,) = [f"j{n}" for n, (added, _) in enumerate(replies) if added]
        assert {holder for added, holder in replies if not added} == {winner}


class QueueHoldContract(StoreUnderTest):
    """Releasing a job and holding its queue until a moment."""

    async def test_no_job_of_a_held_queue_is_claimed(self, store: Store, clock: FakeClock) -> None:
        first = await add_and_claim(store, "a")
        await apply(store, unit(jobs=[job("b"), job("c", "letters")]))
        until = clock.now_ms() + 10_000
        released = unit(claim=first, outcome=Released(hold_until=until))
        work = (await store.commit([released], claim_request("orders", "letters"))).claimed
        assert names(work) == ["c"]
        assert work.next_due == until
        clock.set_ms(until - 1)
        assert await claim(store) == []
        assert (await store.claim(claim_request())).next_due == until
        clock.set_ms(until)
        again, other = await claim(store)
        assert (again.job, again.attempt, again.failures, other.job) == ("a", 2, 0, "b")

    async def test_a_shorter_hold_does_not_replace_a_longer_one(self, store: Store, clock: FakeClock) -> None:
        first, second = await add_and_claim(store, "a"), await add_and_claim(store, "b")
        now = clock.now_ms()
        await apply(store, unit(claim=first, outcome=Released(hold_until=now + 10_000)))
        await apply(store, unit(claim=second, outcome=Released(hold_until=now + 1000)))
        clock.advance("5s")
        assert await claim(store) == []
        clock.advance("5s")
        assert len(await claim(store)) == 2

    async def test_a_release_without_a_lease_holds_nothing(self, store: Store, clock: FakeClock) -> None:
        late = await add_and_claim(store, "a")
        clock.advance("1m")
        assert names(await claim(store)) == ["a"]
        await apply(store, unit(claim=late, outcome=Released(hold_until=clock.now_ms() + 10_000), jobs=[job("b")]))
        await apply(store, unit(jobs=[job("c")]))
        assert names(await claim(store)) == ["c"]


def _job(id: str, dedupe: Dedupe | None = None, **fields: Any) -> NewJob:
    return job(id, dedupe=dedupe or Dedupe("ada"), **fields)


async def _add(store: Store, new: NewJob) -> tuple[bool, str | None]:
    """Add a job; return whether it was added, and the job that holds its key if it was not."""
    receipt = await apply(store, unit(jobs=[new]))
    assert isinstance(receipt, Committed)
    return receipt.added[0], receipt.deduplicated.get(0)
