"""Queue administration: listing, pausing, promoting, retrying, removing, draining."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from ...ports.store import JobRow, QueueRow, Store
from ...ports.unit import Cancelled, Committed, Completed, Dead, JobState, Memo, Parent, Released, RetryAt, Suspended
from ..clock import FakeClock
from .samples import (
    ERROR,
    QUEUE,
    add,
    add_and_claim,
    apply,
    claim,
    claim_one,
    claim_request,
    job,
    names,
    run,
    state_of,
    unit,
)
from .store_under_test import StoreUnderTest

EMPTY = {state.value: 0 for state in JobState}


class QueueAdminContract(StoreUnderTest):
    """Every operation, on every state of a job."""

    async def test_queues_with_their_counts(self, store: Store, clock: FakeClock) -> None:
        assert await store.queues() == []
        await one_in_each_state(store, clock)
        await add(store, job("other", "letters"))
        await store.pause("stopped")
        assert all(type(count) is int for row in await store.queues() for count in row.counts.values())
        counts = dict.fromkeys(EMPTY, 1)
        now = clock.now_ms()
        assert await store.queues() == [
            QueueRow("elsewhere", False, {**EMPTY, "waiting": 1}, now),
            QueueRow("letters", False, {**EMPTY, "waiting": 1}, now),
            QueueRow(QUEUE, False, counts, now),
            QueueRow("stopped", True, EMPTY),
        ]

    async def test_the_columns_of_a_job_row(self, store: Store, clock: FakeClock) -> None:
        now = clock.now_ms()
        step = job("r.a.1", run="r", scope="r.a", priority=4, opts=b"[]")
        await apply(store, unit(run=run("r"), jobs=[step]))
        waiting, payload = JobState.WAITING, b'{"job":"r.a.1"}'
        assert await store.job("r.a.1") == JobRow(
            "r.a.1", QUEUE, "charge", waiting, payload, b"[]", 4, 0, 0, 0, 0, "r", "r.a", now, None, None, None, None,
        )  # fmt: skip
        assert await store.job("nothing") is None
        await add(store, job("own"))
        row = await store.job("own")
        assert row is not None
        assert (row.run, row.scope) == (None, "own")

    @pytest.mark.parametrize("state", list(JobState), ids=lambda state: state.value)
    async def test_jobs_of_each_state_with_pages(self, store: Store, clock: FakeClock, state: JobState) -> None:
        await one_in_each_state(store, clock)
        await one_in_each_state(store, clock, "letters")
        for n in range(6):
            await IN_STATE[state](store, clock, f"more.{n}", QUEUE)
        everything = [row.id for row in await store.jobs(QUEUE, state)]
        assert everything == [f"{QUEUE}.{state.value}", *(f"more.{n}" for n in range(6))]
        assert all(row.state is state for row in await store.jobs(QUEUE, state))
        found: list[str] = []
        while page := await store.jobs(QUEUE, state, after=found[-1] if found else None, limit=2):
            found += [row.id for row in page]
        assert found == everything

    async def test_waiting_jobs_in_the_order_they_will_run(self, store: Store) -> None:
        await add(store, job("c", priority=2), job("a"), job("d", priority=2), job("first", priority=-5), job("b"))
        expected = ["first", "a", "b", "c", "d"]
        found: list[str] = []
        while page := await store.jobs(QUEUE, JobState.WAITING, after=found[-1] if found else None, limit=2):
            found += [row.id for row in page]
        assert found == expected
        assert names(await claim(store)) == expected

    async def test_delayed_jobs_in_the_order_they_are_due(self, store: Store, clock: FakeClock) -> None:
        now = clock.now_ms()
        dues = {"c": 300, "a": 100, "b": 100, "d": 300}
        await add(store, *(job(id, due=now + due) for id, due in dues.items()))
        found: list[str] = []
        while page := await store.jobs(QUEUE, JobState.DELAYED, after=found[-1] if found else None, limit=1):
            found += [row.id for row in page]
        assert found == ["a", "b", "c", "d"]

    async def test_pages_continue_after_a_job_that_was_retried(self, store: Store, clock: FakeClock) -> None:
        for n in range(5):
            await _failed(store, clock, f"j{n}", QUEUE)
        last: str | None = None
        for _ in range(4):
            for row in await store.jobs(QUEUE, JobState.FAILED, after=last, limit=2):
                assert await store.retry(row.id)
                last = row.id
        assert await store.jobs(QUEUE, JobState.FAILED) == []

    async def test_promote_makes_a_delayed_job_due_now(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("j", due=clock.now_ms() + 60_000))
        assert await store.promote("j")
        assert await state_of(store, "j") == "waiting"
        assert names(await claim(store)) == ["j"]

    async def test_retry_puts_a_failed_job_back(self, store: Store) -> None:
        one = await add_and_claim(store, "j")
        await apply(store, unit(claim=one, outcome=RetryAt(0, ERROR)))
        await apply(store, unit(claim=await claim_one(store), outcome=Dead(ERROR)))
        assert await store.retry("j")
        row = await store.job("j")
        assert row is not None
        assert (row.state, row.failures, row.crashes, row.error, row.finished) == (
            JobState.WAITING,
            0,
            0,
            None,
            None,
        )
        again = await claim_one(store)
        assert (again.failures, again.crashes) == (0, 0)
        assert again.attempt > 2  # attempt numbers are never reused: the fence depends on it
        assert isinstance(await apply(store, unit(claim=again, outcome=Completed())), Committed)

    async def test_retry_leaves_jobs_of_runs_to_the_engine(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")]))
        await apply(store, unit(claim=await claim_one(store), outcome=Dead(ERROR)))
        assert not await store.retry("r.a.1")
        assert await state_of(store, "r.a.1") == "failed"

    @pytest.mark.parametrize(
        ("verb", "allowed"),
        [
            ("promote", {"delayed"}),
            ("retry", {"failed", "cancelled"}),
            ("remove", {state.value for state in JobState} - {"active"}),
        ],
    )
    async def test_an_operation_works_only_on_its_states(
        self, store: Store, clock: FakeClock, verb: str, allowed: set[str]
    ) -> None:
        await one_in_each_state(store, clock)
        for state in JobState:
            id = f"{QUEUE}.{state.value}"
            before = await store.job(id)
            done = await getattr(store, verb)(id)
            assert done is (state.value in allowed), state
            assert (await store.job(id) == before) is not done, state
        assert await getattr(store, verb)("nothing") is False

    async def test_remove_deletes(self, store: Store) -> None:
        await add(store, job("j"), job("k"))
        assert await store.remove("j")
        assert await store.job("j") is None
        assert not await store.remove("j")
        assert names(await claim(store)) == ["k"]
        assert await apply(store, unit(jobs=[job("j")])) == Committed(added=[True])

    async def test_a_removed_job_removes_its_memos(self, store: Store) -> None:
        one = await add_and_claim(store, "j")
        await apply(store, unit(claim=one, outcome=Dead(ERROR), memos=[Memo("j", "rate#1", b"1")]))
        await store.remove("j")
        again = await add_and_claim(store, "j")
        await apply(store, unit(claim=again, outcome=RetryAt(0, ERROR)))
        assert (await claim_one(store)).memos == {}

    async def test_drain_deletes_waiting_jobs_outside_of_runs(self, store: Store, clock: FakeClock) -> None:
        await one_in_each_state(store, clock)
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")]))
        await add(store, job("more"), job("other", "letters"))
        assert await store.drain(QUEUE) == 2
        (_, _, orders) = await store.queues()
        assert orders.counts == {**dict.fromkeys(EMPTY, 1), "waiting": 1}
        assert await state_of(store, "r.a.1") == "waiting"
        assert await state_of(store, "other") == "waiting"
        assert await store.drain(QUEUE) == 0

    async def test_drain_deletes_delayed_jobs_on_request(self, store: Store, clock: FakeClock) -> None:
        due = clock.now_ms() + 1000
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r", due=due)]))
        await add(store, job("now"), job("later", due=due))
        assert await store.drain(QUEUE, delayed=True) == 2
        assert await state_of(store, "r.a.1") == "delayed"
        assert (await store.claim(claim_request())).next_due == due

    async def test_pausing_twice_and_resuming_twice(self, store: Store) -> None:
        for verb, paused in (
            (store.pause, True),
            (store.pause, True),
            (store.resume, False),
            (store.resume, False),
        ):
            await verb(QUEUE)
            assert [q.paused for q in await store.queues()] == [paused]


Put = Callable[[Store, FakeClock, str, str], Awaitable[None]]


async def one_in_each_state(store: Store, clock: FakeClock, queue: str = QUEUE) -> None:
    """Add a job `<queue>.<state>` in every state; the waiting one comes last, so that no claim takes it."""
    for state in (*list(JobState)[1:], JobState.WAITING):
        await IN_STATE[state](store, clock, f"{queue}.{state.value}", queue)


async def _active(store: Store, clock: FakeClock, id: str, queue: str) -> None:
    # Before any other waiting job.
    assert (await add_and_claim(store, id, queue, priority=-1)).job == id


async def _waiting(store: Store, clock: FakeClock, id: str, queue: str) -> None:
    await add(store, job(id, queue))


async def _delayed(store: Store, clock: FakeClock, id: str, queue: str) -> None:
    await add(store, job(id, queue, due=clock.now_ms() + 3_600_000))


async def _suspended(store: Store, clock: FakeClock, id: str, queue: str) -> None:
    await apply(store, unit(claim=await add_and_claim(store, id, queue, priority=-1), outcome=Suspended()))


async def _completed(store: Store, clock: FakeClock, id: str, queue: str) -> None:
    await apply(store, unit(claim=await add_and_claim(store, id, queue, priority=-1), outcome=Completed()))


async def _failed(store: Store, clock: FakeClock, id: str, queue: str) -> None:
    await apply(store, unit(claim=await add_and_claim(store, id, queue, priority=-1), outcome=Dead(ERROR)))


async def _cancelled(store: Store, clock: FakeClock, id: str, queue: str) -> None:
    await apply(store, unit(claim=await add_and_claim(store, id, queue, priority=-1), outcome=Cancelled("stop")))


async def _waiting_children(store: Store, clock: FakeClock, id: str, queue: str) -> None:
    child = job(f"{id}-child", "elsewhere", parent=Parent(id, queue))
    await add(store, job(id, queue, waits_for_children=True), child)


async def _held_back(store: Store, clock: FakeClock, id: str, queue: str) -> None:
    of = id.partition(".")[0]
    if await store.run(of) is None:
        await apply(store, unit(run=run(of, status="paused", paused=True)))
    await add(store, job(id, queue, run=of, priority=-1))
    for other in await claim(store, queue, limit=1):  # the claim skipped the held job and took the next one
        await apply(store, unit(claim=other, outcome=Released()))


IN_STATE: dict[JobState, Put] = {
    JobState.WAITING: _waiting,
    JobState.DELAYED: _delayed,
    JobState.ACTIVE: _active,
    JobState.SUSPENDED: _suspended,
    JobState.COMPLETED: _completed,
    JobState.FAILED: _failed,
    JobState.CANCELLED: _cancelled,
    JobState.WAITING_CHILDREN: _waiting_children,
    JobState.HELD: _held_back,
}
