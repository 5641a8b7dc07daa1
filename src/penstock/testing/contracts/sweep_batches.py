"""A sweep goes in batches, from the oldest on, and removes everything in the end."""

from __future__ import annotations

from ...ports.store import Retention, Store
from ...ports.unit import Completed, Memo, StateWrite
from ..clock import FakeClock
from .samples import QUEUE, add, add_and_claim, apply, claim, event, job, run, seqs, state_of, unit, wait
from .store_under_test import StoreUnderTest, take_snapshot

LIMIT = 3
MAX_SWEEPS = 1000
FAR = 10**15
ALL = Retention(runs_before=FAR, jobs_before=FAR, events_before=FAR)


class SweepBatchesContract(StoreUnderTest):
    """`limit` bounds what one call removes of each kind."""

    async def test_a_call_removes_at_most_its_limit_of_each_kind(self, store: Store, clock: FakeClock) -> None:
        for n in range(2):
            await _large_run(store, f"r{n}")
            await _done(store, f"q{n}", 7)
        states = [StateWrite(f"s{n}", b"1", expires=clock.now_ms() + 1) for n in range(8)]
        await apply(store, unit(state=states, events=[event(stream="nq:global") for _ in range(8)]))
        clock.advance("1h")
        calls = []
        while any((removed := await store.sweep(ALL, LIMIT)).values()):
            calls.append(removed)
        assert max(max(removed.values()) for removed in calls) == LIMIT
        total = {kind: sum(removed[kind] for removed in calls) for kind in ("runs", "jobs", "events")}
        assert total == {"runs": 2, "jobs": 24, "events": 38}
        left = await take_snapshot(store)
        assert [left[kind] for kind in ("runs", "jobs", "waits", "state")] == [[], [], [], []]
        assert not any(left["streams"].values())

    async def test_the_oldest_events_go_first(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("j"))
        for name in ("nq:global", f"nq:queue:{QUEUE}"):
            await apply(store, unit(events=[event(stream=name) for _ in range(7)]))
        clock.advance("1h")
        await apply(store, unit(events=[event(stream="nq:global")]))
        what = Retention(events_before=clock.now_ms())
        assert (await store.sweep(what, 4))["events"] == 4
        seen = [seqs(await store.read(name)) for name in ("nq:global", f"nq:queue:{QUEUE}")]
        assert sum(map(len, seen)) == 11
        assert all(found == list(range(found[0], found[-1] + 1)) for found in seen)
        assert [(await store.sweep(what, 4))["events"] for _ in range(4)] == [4, 4, 2, 0]
        assert seqs(await store.read("nq:global")) == [8]

    async def test_the_oldest_jobs_go_first_whatever_their_state(self, store: Store, clock: FakeClock) -> None:
        for n in range(6):
            held = await add_and_claim(store, f"j{n}")
            clock.advance("1s")
            await apply(store, unit(claim=held, outcome=Completed()))
        gone = 0
        while any((removed := await store.sweep(Retention(keep_jobs=1), 2)).values()):
            assert removed["jobs"] <= 2
            gone += removed["jobs"]
            states = [await state_of(store, f"j{n}") for n in range(6)]
            assert states == [None] * gone + ["completed"] * (6 - gone)
        assert gone == 5

    async def test_steps_of_kept_runs_do_not_hide_old_jobs(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r"), jobs=[job(f"r.a.{n}", run="r") for n in range(1, 10)]))
        for held in await claim(store, limit=9):
            await apply(store, unit(claim=held, outcome=Completed()))
        clock.advance("1m")
        await _done(store, QUEUE, 2)
        clock.advance("1m")
        await sweep_all(store, clock, LIMIT)
        assert [await state_of(store, id) for id in (f"{QUEUE}-0", f"{QUEUE}-1", "r.a.1")] == [None, None, "completed"]

    async def test_steps_are_not_counted(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r"), jobs=[job(f"r.a.{n}", run="r") for n in range(1, 10)]))
        for held in await claim(store, limit=9):
            await apply(store, unit(claim=held, outcome=Completed()))
        await _done(store, QUEUE, 5)
        clock.advance("1m")
        gone = 0
        while any((removed := await store.sweep(Retention(keep_jobs=3), LIMIT)).values()):
            gone += removed["jobs"]
        assert gone == 2

    async def test_an_old_event_leaves_the_feed_with_its_stream(self, store: Store) -> None:
        await apply(store, unit(events=[event(stream="nq:global"), event(stream="nq:entity:e")]))
        await store.sweep(ALL)
        assert [item.stream for item in await store.feed("")] == ["nq:entity:e"]


async def sweep_all(store: Store, clock: FakeClock, limit: int = 500) -> int:
    """Sweep with no retention until a call removes nothing. Return the number of calls that removed something."""
    now = clock.now_ms() + 1
    what = Retention(runs_before=now, jobs_before=now, events_before=now, keep_deliveries=0)
    for calls in range(MAX_SWEEPS):
        if not any((await store.sweep(what, limit)).values()):
            return calls
    raise AssertionError(f"{MAX_SWEEPS} sweeps, and the last one still removed something")


async def _done(store: Store, queue: str, count: int) -> None:
    """Add jobs with an event each, and complete them."""
    for n in range(count):
        held = await add_and_claim(store, f"{queue}-{n}", queue)
        await apply(store, unit(claim=held, outcome=Completed(), events=[event(stream=f"nq:queue:{queue}")]))


async def _large_run(store: Store, id: str) -> None:
    """Add a closed run that owns more of each kind than a batch removes."""
    jobs = [job(f"{id}.a.{n}", run=id) for n in range(1, 6)]
    states = [StateWrite(f"run/{id}/{n}", b"1") for n in range(5)]
    events = [event(stream=f"nq:flow:{id}") for _ in range(8)]
    waits = [wait(f"{id}-w{n}", id) for n in range(5)]
    memos = [Memo(f"{id}.a.1", f"rate#{n}", b"1") for n in range(5)]
    await apply(store, unit(run=run(id), jobs=jobs, events=events, waits=waits, state=states, memos=memos))
    await apply(store, unit(run=run(id, 1, status="cancelled", closed=True, cancel_jobs=True)))
