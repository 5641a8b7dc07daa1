"""Retention of ended jobs: which are kept, and that removing one neither repeats nor loses work."""

from __future__ import annotations

from collections.abc import Sequence

from ...ports.store import Store
from ...ports.unit import Claim, Committed, Completed, Dead, JobState, KeepJobs, Memo, PublishedOptions
from ..clock import FakeClock
from .samples import ERROR, QUEUE, add, add_and_claim, apply, claim_one, claim_request, job, run, state_of, unit
from .store_under_test import StoreUnderTest


class RetentionContract(StoreUnderTest):
    """Completed and failed jobs that are removed when they, or later ones, end."""

    async def test_a_job_may_be_removed_when_it_completes(self, store: Store) -> None:
        claim = await add_and_claim(store, "a")
        receipt = await apply(store, unit(claim=claim, outcome=Completed(b"1", KeepJobs(0))))
        assert isinstance(receipt, Committed)
        assert await state_of(store, "a") is None
        assert await _ended_ids(store, JobState.COMPLETED) == []

    async def test_a_job_may_be_removed_when_it_fails(self, store: Store) -> None:
        claim = await add_and_claim(store, "a")
        await apply(store, unit(claim=claim, outcome=Dead(ERROR, KeepJobs(0)), jobs=[job("a.dlq", "orders-dlq")]))
        assert await state_of(store, "a") is None
        assert await state_of(store, "a.dlq") == "waiting"

    async def test_the_newest_jobs_are_kept(self, store: Store, clock: FakeClock) -> None:
        await _end_each(store, clock, "abcd", KeepJobs(2))
        assert await _ended_ids(store, JobState.COMPLETED) == ["c", "d"]

    async def test_jobs_older_than_the_age_are_removed(self, store: Store, clock: FakeClock) -> None:
        await _end_each(store, clock, "ab", KeepJobs(age_ms=60_000))
        clock.advance("50s")
        await _end_each(store, clock, "c", KeepJobs(age_ms=60_000))
        assert await _ended_ids(store, JobState.COMPLETED) == ["a", "b", "c"]
        clock.advance("15s")
        await _end_each(store, clock, "d", KeepJobs(age_ms=60_000))
        assert await _ended_ids(store, JobState.COMPLETED) == ["c", "d"]

    async def test_age_and_count_apply_together(self, store: Store, clock: FakeClock) -> None:
        await _end_each(store, clock, "abc", KeepJobs(2, 60_000))
        assert await _ended_ids(store, JobState.COMPLETED) == ["b", "c"]
        clock.advance("2m")
        await _end_each(store, clock, "d", KeepJobs(2, 60_000))
        assert await _ended_ids(store, JobState.COMPLETED) == ["d"]

    async def test_failed_jobs_have_their_own_count(self, store: Store, clock: FakeClock) -> None:
        await _end_each(store, clock, "ab", KeepJobs(1))
        for id in "cd":
            claim = await add_and_claim(store, id)
            clock.advance("1s")
            await apply(store, unit(claim=claim, outcome=Dead(ERROR, KeepJobs(1))))
        assert await _ended_ids(store, JobState.COMPLETED) == ["b"]
        assert await _ended_ids(store, JobState.FAILED) == ["d"]

    async def test_each_queue_has_its_own_count(self, store: Store, clock: FakeClock) -> None:
        await _end_each(store, clock, "ab", KeepJobs(1), "letters")
        await _end_each(store, clock, "cd", KeepJobs(1))
        assert await _ended_ids(store, JobState.COMPLETED, "letters") == ["b"]
        assert await _ended_ids(store, JobState.COMPLETED) == ["d"]

    async def test_jobs_of_a_run_are_neither_counted_nor_removed(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r1"), jobs=[job(f"r1.charge.{n}", run="r1") for n in (1, 2, 3)]))
        for _ in range(3):
            await apply(store, unit(claim=await claim_one(store), outcome=Completed()))
            clock.advance("1s")
        await _end_each(store, clock, "abc", KeepJobs(2))
        assert await _ended_ids(store, JobState.COMPLETED) == ["r1.charge.1", "r1.charge.2", "r1.charge.3", "b", "c"]

    async def test_many_jobs_that_end_in_one_commit(self, store: Store) -> None:
        claims = [await add_and_claim(store, id) for id in "abcde"]
        await store.commit([unit(claim=claim, outcome=Completed(b"1", KeepJobs(2))) for claim in claims])
        assert len(await _ended_ids(store, JobState.COMPLETED)) == 2

    async def test_a_job_past_retention_removes_its_memos(self, store: Store, clock: FakeClock) -> None:
        for id, keep in (("a", KeepJobs(0)), ("b", KeepJobs(1)), ("c", KeepJobs(1))):
            claim = await add_and_claim(store, id)
            clock.advance("1s")
            await apply(store, unit(claim=claim, outcome=Completed(keep=keep), memos=[Memo(id, "rate#1", b"1")]))
        assert [await store.memos(id) for id in "abc"] == [{}, {}, {"rate#1": b"1"}]

    async def test_memos_of_a_dead_letter_are_kept(self, store: Store) -> None:
        claim = await add_and_claim(store, "a")
        await apply(store, unit(claim=claim, memos=[Memo("a", "rate#1", b"1")]))
        await apply(store, unit(claim=claim, outcome=Dead(ERROR, KeepJobs(0)), jobs=[job("a.dlq", "dlq")]))
        assert await store.memos("a") == {"rate#1": b"1"}

    async def test_the_id_of_a_removed_job_is_free_again(self, store: Store) -> None:
        claim = await add_and_claim(store, "a")
        await apply(store, unit(claim=claim, outcome=Completed(keep=KeepJobs(0))))
        assert (await add_and_claim_again(store, "a")).attempt == 1

    async def test_the_id_of_a_removed_job_is_free_within_the_same_commit(self, store: Store) -> None:
        ending = unit(claim=await add_and_claim(store, "a"), outcome=Completed(keep=KeepJobs(0)))
        reply = await store.commit([ending, unit(jobs=[job("a")])], claim_request())
        assert [receipt.added for receipt in reply.receipts if isinstance(receipt, Committed)] == [[], [True]]
        assert [(claim.job, claim.attempt) for claim in reply.claimed.claims] == [("a", 1)]

    async def test_a_repeated_end_of_a_removed_job_is_recognised(self, store: Store) -> None:
        ending = unit(claim=await add_and_claim(store, "a"), outcome=Completed(b"1", KeepJobs(0)))
        await apply(store, ending)
        receipt = await apply(store, ending)
        assert isinstance(receipt, Committed)
        assert receipt.repeated

    async def test_a_repeated_unit_does_not_add_a_removed_job_again(self, store: Store) -> None:
        options = PublishedOptions(keep_completed=KeepJobs(0))
        adding = unit(jobs=[job("a", published=options)])
        await apply(store, adding)
        await apply(store, unit(claim=await claim_one(store), outcome=Completed(keep=KeepJobs(0))))
        await apply(store, adding)
        assert await state_of(store, "a") is None


async def add_and_claim_again(store: Store, id: str) -> Claim:
    await add(store, job(id))
    return await claim_one(store)


async def _end_each(store: Store, clock: FakeClock, ids: Sequence[str], keep: KeepJobs, queue: str = QUEUE) -> None:
    """Add, claim and complete jobs one after the other, one second each."""
    for id in ids:
        claim = await add_and_claim(store, id, queue)
        clock.advance("1s")
        await apply(store, unit(claim=claim, outcome=Completed(b"1", keep)))


async def _ended_ids(store: Store, state: JobState, queue: str = QUEUE) -> list[str]:
    return [row.id for row in await store.jobs(queue, state)]
