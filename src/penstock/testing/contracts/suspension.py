"""Suspended jobs: until they are due, until they are woken, or until their run resumes."""

from __future__ import annotations

import pytest

from ...ports.store import Store
from ...ports.unit import Committed, Completed, JobState, Memo, Refused, Released, RetryAt, SettleWait, Suspended
from ..clock import FakeClock
from .change_signals import SIGNAL_TIMEOUT_S
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
    wait,
)
from .store_under_test import StoreUnderTest


class SuspensionContract(StoreUnderTest):
    """A suspended job keeps its data and does not wake too early."""

    async def test_suspended_until_a_moment(self, store: Store, clock: FakeClock) -> None:
        one, due = await add_and_claim(store, "j"), clock.now_ms() + 5000
        await apply(store, unit(claim=one, outcome=Suspended(due), memos=[Memo("j", "time#1", b"1")]))
        row = await store.job("j")
        assert row is not None
        assert (row.due, row.failures, row.finished) == (due, 0, None)
        assert (await store.claim(claim_request())).next_due == due
        clock.set_ms(due - 1)
        assert await claim(store) == []
        clock.set_ms(due)
        again = await claim_one(store)
        assert (again.attempt, again.failures, again.crashes, again.memos) == (1, 0, 0, {"time#1": b"1"})

    async def test_counts_of_waits_with_a_timeout(self, store: Store, clock: FakeClock) -> None:
        """A job that waits with a timeout is suspended in the counts; a retry that is due later is delayed."""

        async def counts() -> tuple[int, int, int]:
            (row,) = await store.queues()
            return row.counts["waiting"], row.counts["delayed"], row.counts["suspended"]

        due, jobs = clock.now_ms() + 60_000, [f"r.{name}.1" for name in ("timed", "expires", "open", "retried")]
        await apply(store, unit(run=run("r"), jobs=[job(id, run="r") for id in jobs]))
        claims = {one.job: one for one in await claim(store, limit=4)}
        dues = {"r.timed.1": due, "r.expires.1": due, "r.open.1": None}
        for id, ends in dues.items():
            waits = [wait(f"{id}.{n}", "r", job=id, due=ends) for n in range(2)]
            await apply(store, unit(claim=claims[id], outcome=Suspended(ends), waits=waits))
        await apply(store, unit(claim=claims["r.retried.1"], outcome=RetryAt(due, ERROR)))
        assert await counts() == (0, 1, 3)
        settled = [SettleWait(f"r.timed.1.{n}", "resolved") for n in range(2)]
        await apply(store, unit(wakes=["r.timed.1"], waits=settled))
        assert await counts() == (1, 1, 2)
        clock.set_ms(due)
        assert len(await claim(store)) == 3
        assert await counts() == (0, 0, 1)

    async def test_a_claim_carries_its_time(self, store: Store, clock: FakeClock) -> None:
        one = await add_and_claim(store, "j")
        assert one.at == clock.now_ms()
        clock.advance("1m")
        await apply(store, unit(claim=one, outcome=Released()))
        (again,) = (await store.commit([unit()], claim_request())).claimed.claims
        assert again.at == clock.now_ms()

    @pytest.mark.parametrize("later", [False, True], ids=["for good", "until a moment"])
    async def test_a_suspended_job_is_woken(self, store: Store, clock: FakeClock, later: bool) -> None:
        due = clock.now_ms() + 60_000 if later else None
        await apply(store, unit(claim=await add_and_claim(store, "j"), outcome=Suspended(due)))
        with store.signals.listen(f"queue:{QUEUE}") as listener:
            assert isinstance(await apply(store, unit(wakes=["j"])), Committed)
            assert await listener.wait(SIGNAL_TIMEOUT_S)
        assert (await claim_one(store)).attempt == 1
        assert await claim(store) == []

    async def test_waking_leaves_every_other_job_as_it_is(self, store: Store, clock: FakeClock) -> None:
        done = await add_and_claim(store, "done")
        await apply(store, unit(claim=done, outcome=Completed()))
        await add_and_claim(store, "active")
        await add(store, job("waiting"))
        ids = ("done", "active", "waiting")
        before = [await store.job(id) for id in ids]
        assert isinstance(await apply(store, unit(wakes=[*ids, "missing"])), Committed)
        assert [await store.job(id) for id in ids] == before

    async def test_suspended_and_woken_by_one_commit(self, store: Store) -> None:
        one = await add_and_claim(store, "j")
        await store.commit([unit(claim=one, outcome=Suspended()), unit(wakes=["j"])])
        assert names(await claim(store)) == ["j"]

    async def test_a_wait_resolved_before_the_suspension_refuses_it(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")], waits=[wait("w", "r", job="r.a.1")]))
        one = await claim_one(store)
        resolve = unit(waits=[SettleWait("w", "resolved")], wakes=["r.a.1"])
        suspend = unit(claim=one, outcome=Suspended(), waits=[wait("w", "r", job="r.a.1")])
        receipts = (await store.commit([resolve, suspend])).receipts
        assert receipts[1] == Refused("wait", "w")
        assert await state_of(store, "r.a.1") == "active"

    async def test_a_retry_that_is_woken_keeps_its_failures(self, store: Store, clock: FakeClock) -> None:
        due = clock.now_ms() + 60_000
        await apply(store, unit(claim=await add_and_claim(store, "j"), outcome=RetryAt(due, ERROR)))
        await apply(store, unit(wakes=["j"]))
        assert (await claim_one(store)).failures == 1


class PausedRunContract(StoreUnderTest):
    """Jobs of a paused run are held when they would be claimed, and released when the run resumes."""

    async def test_held_at_a_claim_and_released_in_order(self, store: Store) -> None:
        jobs = [job(f"r.a.{n}", run="r") for n in (1, 2)]
        await apply(store, unit(run=run("r", status="paused", paused=True), jobs=jobs))
        await add(store, job("other"))
        assert [await state_of(store, f"r.a.{n}") for n in (1, 2)] == ["waiting"] * 2
        assert names(await claim(store)) == ["other"]
        assert [await state_of(store, f"r.a.{n}") for n in (1, 2)] == ["held"] * 2
        assert await claim(store) == []
        with store.signals.listen(f"queue:{QUEUE}") as listener:
            await apply(store, unit(run=run("r", 1)))
            assert await listener.wait(SIGNAL_TIMEOUT_S)
        assert names(await claim(store)) == ["r.a.1", "r.a.2"]

    async def test_a_claim_skips_held_jobs(self, store: Store) -> None:
        jobs = [job(f"r.a.{n}", run="r", priority=-1) for n in range(5)]
        await apply(store, unit(run=run("r", paused=True), jobs=jobs))
        await add(store, job("other"))
        assert names(await claim(store, limit=1)) == ["other"]

    async def test_a_delayed_job_stays_delayed(self, store: Store, clock: FakeClock) -> None:
        due = clock.now_ms() + 60_000
        await apply(store, unit(run=run("r", paused=True), jobs=[job("r.a.1", run="r", due=due)]))
        assert await claim(store) == []
        assert await state_of(store, "r.a.1") == "delayed"
        await apply(store, unit(run=run("r", 1)))
        assert await claim(store) == []
        clock.set_ms(due)
        assert names(await claim(store)) == ["r.a.1"]

    async def test_a_job_that_becomes_due_is_held(self, store: Store, clock: FakeClock) -> None:
        due = clock.now_ms() + 60_000
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")]))
        await apply(store, unit(claim=await claim_one(store), outcome=Suspended(due)))
        await apply(store, unit(run=run("r", 1, paused=True)))
        clock.set_ms(due)
        assert await claim(store) == []
        assert await state_of(store, "r.a.1") == "held"
        await apply(store, unit(run=run("r", 2)))
        assert names(await claim(store)) == ["r.a.1"]

    async def test_an_active_attempt_continues(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")]))
        one = await claim_one(store)
        await apply(store, unit(run=run("r", 1, paused=True)))
        assert store.renew([one], 1000) == []
        done = unit(claim=one, outcome=Completed(), run=run("r", 2, paused=True), jobs=[job("r.b.1", run="r")])
        assert isinstance(await apply(store, done), Committed)
        assert await claim(store) == []
        assert await state_of(store, "r.b.1") == "held"

    async def test_only_the_jobs_of_the_resumed_run_are_released(self, store: Store) -> None:
        for of in ("r", "r.b"):
            await apply(store, unit(run=run(of, paused=True), jobs=[job(f"{of}.a.1", run=of)]))
        assert await claim(store) == []
        await apply(store, unit(run=run("r", 1)))
        assert names(await claim(store)) == ["r.a.1"]
        assert await state_of(store, "r.b.a.1") == "held"

    async def test_cancelling_a_paused_run_cancels_held_jobs(self, store: Store) -> None:
        await apply(store, unit(run=run("r", paused=True), jobs=[job("r.a.1", run="r")]))
        await claim(store)
        await apply(store, unit(run=run("r", 1, status="cancelled", closed=True, cancel_jobs=True)))
        assert await state_of(store, "r.a.1") == JobState.CANCELLED.value
        assert await claim(store) == []
