"""Leases: how long a claim is valid, and what happens when its worker is gone."""

from __future__ import annotations

import asyncio
import threading

import msgspec

from ...ports.store import Store
from ...ports.unit import Claim, Committed, Completed, Fenced, JobState, Released
from ..clock import FakeClock
from .samples import (
    STREAM,
    add,
    add_and_claim,
    apply,
    claim,
    claim_one,
    claim_request,
    event,
    job,
    names,
    run,
    started,
    state_of,
    unit,
)
from .store_under_test import StoreUnderTest


async def renew(store: Store, *claims: Claim, lease_ms: int = 30_000) -> list[str]:
    """Renew from another thread, as the worker does; return the lost jobs."""
    return names(await asyncio.to_thread(store.renew, claims, lease_ms))


class LeaseContract(StoreUnderTest):
    """A job belongs to one worker until its lease expires, and only one worker's result is kept."""

    async def test_a_job_with_an_expired_lease_is_claimed_again(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("j", started=started()))
        first = await claim_one(store, worker="w1")
        clock.advance("29999ms")
        assert await claim(store, worker="w2") == []
        clock.advance("1ms")
        second = await claim_one(store, worker="w2")
        assert (second.job, second.attempt, second.crashes, second.failures) == ("j", 2, 1, 0)
        assert second.token != first.token
        assert [e.meta and e.meta["worker"] for e in await store.read(STREAM)] == ["w1", "w2"]

    async def test_each_crash_counts_once(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("j"))
        for crashes in range(4):
            one = await claim_one(store)
            assert (one.crashes, one.attempt) == (crashes, crashes + 1)
            clock.advance("30s")

    async def test_a_crash_is_counted_by_a_claim_with_limit_zero(self, store: Store, clock: FakeClock) -> None:
        await add_and_claim(store, "j")
        clock.advance("30s")
        assert await claim(store, limit=0) == []
        assert await claim(store, limit=0) == []
        assert (await claim_one(store)).crashes == 1

    async def test_the_worker_that_lost_its_lease_is_fenced(self, store: Store, clock: FakeClock) -> None:
        late = await add_and_claim(store, "j")
        clock.advance("31s")
        new = await claim_one(store, worker="w2")
        assert await apply(store, unit(claim=late, outcome=Completed(b'"late"'))) == Fenced()
        assert await apply(store, unit(claim=late, progress=b"1")) == Fenced()
        assert isinstance(await apply(store, unit(claim=new, outcome=Completed(b'"new"'))), Committed)
        assert await apply(store, unit(claim=late, outcome=Completed(b'"late"'))) == Fenced()
        row = await store.job("j")
        assert row is not None
        assert row.result == b'"new"'

    async def test_an_expired_job_keeps_its_priority(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("first"), job("second", priority=1))
        await claim_one(store)
        clock.advance("30s")
        assert names(await claim(store)) == ["first", "second"]

    async def test_one_expired_lease_does_not_touch_another(self, store: Store, clock: FakeClock) -> None:
        await add_and_claim(store, "short")
        await add(store, job("long"))
        await claim_one(store, lease="1h")
        clock.advance("31s")
        assert names(await claim(store)) == ["short"]

    async def test_a_renewed_lease_holds(self, store: Store, clock: FakeClock) -> None:
        one = await add_and_claim(store, "j")
        for _ in range(5):
            clock.advance("20s")
            assert await renew(store, one) == []
        assert await claim(store) == []
        assert (await store.claim(claim_request())).next_due == clock.now_ms() + 30_000
        assert isinstance(await apply(store, unit(claim=one, outcome=Completed())), Committed)

    async def test_renewing_counts_from_now(self, store: Store, clock: FakeClock) -> None:
        one = await add_and_claim(store, "j")
        clock.advance("10s")
        await renew(store, one, lease_ms=5000)
        clock.advance("4999ms")
        assert await claim(store) == []
        clock.advance("1ms")
        assert names(await claim(store)) == ["j"]

    async def test_renewing_returns_lost_claims(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(job(id) for id in ("crashed", "done", "back")))
        crashed, done, back = await claim(store)
        await apply(store, unit(claim=done, outcome=Completed()))
        await apply(store, unit(claim=back, outcome=Released()))
        clock.advance("31s")
        assert sorted(names(await claim(store, worker="w2"))) == ["back", "crashed"]
        kept = await add_and_claim(store, "kept")
        assert await renew(store, crashed, kept, done, back) == ["crashed", "done", "back"]

    async def test_a_lost_claim_does_not_renew_its_successor(self, store: Store, clock: FakeClock) -> None:
        late = await add_and_claim(store, "j")
        clock.advance("31s")
        new = await claim_one(store, worker="w2")
        await renew(store, late, lease_ms=3_600_000)
        await renew(store, msgspec.structs.replace(new, token=late.token), lease_ms=3_600_000)
        await renew(store, msgspec.structs.replace(new, attempt=late.attempt), lease_ms=3_600_000)
        clock.advance("30s")
        assert names(await claim(store)) == ["j"]

    async def test_renewing_returns_claims_of_closed_runs(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")]))
        of_run = await claim_one(store)
        alone = await add_and_claim(store, "alone")
        assert await renew(store, of_run, alone) == []
        await apply(store, unit(run=run("r", 1, status="cancelled", closed=True)))
        assert await renew(store, of_run, alone) == ["r.a.1"]

    async def test_a_claim_of_a_closed_run_may_still_finish(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")]))
        one = await claim_one(store)
        await apply(store, unit(run=run("r", 1, status="cancelled", closed=True, cancel_jobs=True)))
        assert await state_of(store, "r.a.1") == "active"
        # The attempt may finish, but appends nothing after the run's last event.
        assert await apply(store, unit(claim=one, events=[event("step.log")], progress=b"9")) == Fenced()
        assert await store.read(STREAM) == []
        assert isinstance(await apply(store, unit(claim=one, outcome=Completed())), Committed)

    async def test_an_expired_job_of_a_closed_run_is_cancelled(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")]))
        await claim_one(store)
        await apply(store, unit(run=run("r", 1, status="cancelled", closed=True)))
        clock.advance("31s")
        assert await claim(store) == []
        row = await store.job("r.a.1")
        assert row is not None
        assert row.state is JobState.CANCELLED

    async def test_renewing_nothing_is_fine(self, store: Store) -> None:
        assert await renew(store) == []

    async def test_many_threads_renew_during_commits(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(job(f"j{n}") for n in range(20)))
        claims = await claim(store, limit=20)
        clock.advance("20s")
        lost: list[Claim] = []
        threads = [threading.Thread(target=lambda c=c: lost.extend(store.renew([c], 30_000))) for c in claims]
        for thread in threads:
            thread.start()
        await asyncio.gather(*(apply(store, unit(jobs=[job(f"k{n}", "blue")])) for n in range(20)))
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert lost == []
        clock.advance("20s")
        assert await claim(store) == []

    async def test_renewing_works_while_the_event_loop_is_stuck(self, store: Store, clock: FakeClock) -> None:
        one = await add_and_claim(store, "j")
        clock.advance("20s")
        done = threading.Thread(target=store.renew, args=([one], 30_000))
        done.start()
        done.join(10)  # blocks the loop on purpose: no callback of it can run meanwhile
        assert not done.is_alive()
        clock.advance("20s")
        assert await claim(store) == []
