"""What stays of jobs that have ended, and that nothing is counted twice or forgotten for it."""

from __future__ import annotations

from collections.abc import Sequence

from ...ports.store import Store
from ...ports.unit import Claim, Committed, Completed, Dead, JobState, KeepJobs, Memo, PublishedOptions
from ..clock import FakeClock
from .samples import ERROR, QUEUE, add, apply, ask, claim_one, held, job, run, state_of, unit
from .subject import StoreUnderTest


class KeepingContract(StoreUnderTest):
    """Completed and failed jobs that go when they, or later ones, end."""

    async def test_a_job_may_go_when_it_is_completed(self, store: Store) -> None:
        claim = await held(store, "a")
        receipt = await apply(store, unit(claim=claim, outcome=Completed(b"1", KeepJobs(0))))
        assert isinstance(receipt, Committed)
        assert await state_of(store, "a") is None
        assert await _ended(store, JobState.COMPLETED) == []

    async def test_a_job_may_go_when_it_has_failed(self, store: Store) -> None:
        claim = await held(store, "a")
        await apply(store, unit(claim=claim, outcome=Dead(ERROR, KeepJobs(0)), jobs=[job("a.dlq", "orders-dlq")]))
        assert await state_of(store, "a") is None
        assert await state_of(store, "a.dlq") == "waiting"

    async def test_the_newest_of_a_count_stay(self, store: Store, clock: FakeClock) -> None:
        await _end_each(store, clock, "abcd", KeepJobs(2))
        assert await _ended(store, JobState.COMPLETED) == ["c", "d"]

    async def test_none_stays_longer_than_an_age(self, store: Store, clock: FakeClock) -> None:
        await _end_each(store, clock, "ab", KeepJobs(age_ms=60_000))
        clock.advance("50s")
        await _end_each(store, clock, "c", KeepJobs(age_ms=60_000))
        assert await _ended(store, JobState.COMPLETED) == ["a", "b", "c"]
        clock.advance("15s")
        await _end_each(store, clock, "d", KeepJobs(age_ms=60_000))
        assert await _ended(store, JobState.COMPLETED) == ["c", "d"]

    async def test_age_and_count_go_together(self, store: Store, clock: FakeClock) -> None:
        await _end_each(store, clock, "abc", KeepJobs(2, 60_000))
        assert await _ended(store, JobState.COMPLETED) == ["b", "c"]
        clock.advance("2m")
        await _end_each(store, clock, "d", KeepJobs(2, 60_000))
        assert await _ended(store, JobState.COMPLETED) == ["d"]

    async def test_failed_ones_are_counted_by_themselves(self, store: Store, clock: FakeClock) -> None:
        await _end_each(store, clock, "ab", KeepJobs(1))
        for id in "cd":
            claim = await held(store, id)
            clock.advance("1s")
            await apply(store, unit(claim=claim, outcome=Dead(ERROR, KeepJobs(1))))
        assert await _ended(store, JobState.COMPLETED) == ["b"]
        assert await _ended(store, JobState.FAILED) == ["d"]

    async def test_queues_are_counted_by_themselves(self, store: Store, clock: FakeClock) -> None:
        await _end_each(store, clock, "ab", KeepJobs(1), "letters")
        await _end_each(store, clock, "cd", KeepJobs(1))
        assert await _ended(store, JobState.COMPLETED, "letters") == ["b"]
        assert await _ended(store, JobState.COMPLETED) == ["d"]

    async def test_jobs_of_a_run_are_neither_counted_nor_removed(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r1"), jobs=[job(f"r1.charge.{n}", run="r1") for n in (1, 2, 3)]))
        for _ in range(3):
            await apply(store, unit(claim=await claim_one(store), outcome=Completed()))
            clock.advance("1s")
        await _end_each(store, clock, "abc", KeepJobs(2))
        assert await _ended(store, JobState.COMPLETED) == ["r1.charge.1", "r1.charge.2", "r1.charge.3", "b", "c"]

    async def test_many_that_end_in_one_commit(self, store: Store) -> None:
        claims = [await held(store, id) for id in "abcde"]
        await store.commit([unit(claim=claim, outcome=Completed(b"1", KeepJobs(2))) for claim in claims])
        assert len(await _ended(store, JobState.COMPLETED)) == 2

    async def test_what_goes_takes_its_memos_along(self, store: Store, clock: FakeClock) -> None:
        for id, keep in (("a", KeepJobs(0)), ("b", KeepJobs(1)), ("c", KeepJobs(1))):
            claim = await held(store, id)
            clock.advance("1s")
            await apply(store, unit(claim=claim, outcome=Completed(keep=keep), memos=[Memo(id, "rate#1", b"1")]))
        assert [await store.memos(id) for id in "abc"] == [{}, {}, {"rate#1": b"1"}]

    async def test_memos_that_a_dead_letter_reads_stay(self, store: Store) -> None:
        claim = await held(store, "a")
        await apply(store, unit(claim=claim, memos=[Memo("a", "rate#1", b"1")]))
        await apply(store, unit(claim=claim, outcome=Dead(ERROR, KeepJobs(0)), jobs=[job("a.dlq", "dlq")]))
        assert await store.memos("a") == {"rate#1": b"1"}

    async def test_its_id_is_free_again(self, store: Store) -> None:
        claim = await held(store, "a")
        await apply(store, unit(claim=claim, outcome=Completed(keep=KeepJobs(0))))
        assert (await claim_again(store, "a")).attempt == 1

    async def test_its_id_is_free_for_the_next_unit_of_the_same_commit(self, store: Store) -> None:
        ending = unit(claim=await held(store, "a"), outcome=Completed(keep=KeepJobs(0)))
        reply = await store.commit([ending, unit(jobs=[job("a")])], ask())
        assert [receipt.added for receipt in reply.receipts if isinstance(receipt, Committed)] == [[], [True]]
        assert [(claim.job, claim.attempt) for claim in reply.claimed.claims] == [("a", 1)]

    async def test_the_end_of_a_job_that_is_gone_is_known_when_it_is_said_again(self, store: Store) -> None:
        ending = unit(claim=await held(store, "a"), outcome=Completed(b"1", KeepJobs(0)))
        await apply(store, ending)
        receipt = await apply(store, ending)
        assert isinstance(receipt, Committed)
        assert receipt.repeated

    async def test_a_job_that_is_gone_is_not_added_again_by_the_unit_that_did(self, store: Store) -> None:
        terms = PublishedOptions(keep_completed=KeepJobs(0))
        adding = unit(jobs=[job("a", published=terms)])
        await apply(store, adding)
        await apply(store, unit(claim=await claim_one(store), outcome=Completed(keep=KeepJobs(0))))
        await apply(store, adding)
        assert await state_of(store, "a") is None


async def claim_again(store: Store, id: str) -> Claim:
    await add(store, job(id))
    return await claim_one(store)


async def _end_each(store: Store, clock: FakeClock, ids: Sequence[str], keep: KeepJobs, queue: str = QUEUE) -> None:
    """Adds, claims and completes jobs one after the other, a second each."""
    for id in ids:
        claim = await held(store, id, queue)
        clock.advance("1s")
        await apply(store, unit(claim=claim, outcome=Completed(b"1", keep)))


async def _ended(store: Store, state: JobState, queue: str = QUEUE) -> list[str]:
    return [row.id for row in await store.jobs(queue, state)]
