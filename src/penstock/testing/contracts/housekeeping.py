"""Sweeping: old finished work is removed, live work stays."""

from __future__ import annotations

from ...ports.store import Retention, Store
from ...ports.unit import DELIVERIES, Committed, Completed, Dead, Memo, Refused, RetryAt, SettleWait, StateWrite
from ..clock import FakeClock
from .queue_admin import one_in_each_state
from .samples import (
    ERROR,
    QUEUE,
    add,
    add_and_claim,
    apply,
    claim,
    claim_one,
    event,
    job,
    run,
    seqs,
    state_of,
    unit,
    wait,
)
from .store_under_test import StoreUnderTest, take_snapshot

FAR = 10**15


class HousekeepingContract(StoreUnderTest):
    """Sweeping never touches open runs or active jobs."""

    async def test_an_empty_retention_sweeps_nothing(self, store: Store, clock: FakeClock) -> None:
        await one_in_each_state(store, clock)
        await _closed_run(store, "r")
        clock.advance("30d")
        before = await take_snapshot(store)
        gone = await store.sweep(Retention())
        assert {**gone, "others": 0} == {"runs": 0, "jobs": 0, "events": 0, "states": 0, "others": 0}
        assert await take_snapshot(store) == before

    async def test_a_lease_that_would_last_for_ever_expires(self, store: Store) -> None:
        """A damaged time must not keep a job from being claimed again."""
        await add(store, job("j"), job("k"))
        (damaged,) = await claim(store, limit=1, lease="7300d")
        good = await claim_one(store)
        await store.sweep(Retention())
        again = await claim_one(store)
        assert (again.job, again.crashes) == (damaged.job, 1)
        assert isinstance(await apply(store, unit(claim=good, outcome=Completed())), Committed)

    async def test_finished_jobs_by_age(self, store: Store, clock: FakeClock) -> None:
        await _done(store, "old")
        clock.advance("1h")
        await _done(store, "new")
        gone = await store.sweep(Retention(jobs_before=clock.now_ms()))
        assert gone["jobs"] == 1
        assert [await state_of(store, id) for id in ("old", "new")] == [None, "completed"]

    async def test_jobs_that_are_not_finished_are_never_swept(self, store: Store, clock: FakeClock) -> None:
        await one_in_each_state(store, clock)
        gone = await store.sweep(Retention(jobs_before=FAR, keep_jobs=0))
        assert gone["jobs"] == 3
        (_, queue) = await store.queues()
        alive = {"waiting", "delayed", "active", "suspended", "held", "waiting-children"}
        assert queue.counts == {state: int(state in alive) for state in queue.counts}

    async def test_finished_jobs_by_count_of_each_queue(self, store: Store, clock: FakeClock) -> None:
        for n in range(5):
            await _done(store, f"a{n}", "a")
            await _done(store, f"b{n}", "b")
            clock.advance("1s" if n % 2 else 0)
        gone = await store.sweep(Retention(keep_jobs=2))
        assert gone["jobs"] == 6
        left = [await state_of(store, f"{q}{n}") for q in "ab" for n in (3, 4)]
        assert left == ["completed"] * 4
        assert (await store.sweep(Retention(keep_jobs=2)))["jobs"] == 0

    async def test_jobs_of_runs_stay_with_their_run(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r"), job("r.b.1", run="r")]))
        await apply(store, unit(claim=await claim_one(store), outcome=Dead(ERROR)))
        before = await take_snapshot(store)
        assert (await store.sweep(Retention(jobs_before=FAR, keep_jobs=0)))["jobs"] == 0
        assert await take_snapshot(store) == before

    async def test_closed_runs_by_age_with_everything_they_own(self, store: Store, clock: FakeClock) -> None:
        await _closed_run(store, "old")
        await _closed_run(store, "old.er")
        await apply(
            store,
            unit(run=run("open"), jobs=[job("open.a.1", run="open")], events=[event(stream="nq:flow:open")]),
        )
        clock.advance("1h")
        await _closed_run(store, "new")
        gone = await store.sweep(Retention(runs_before=clock.now_ms()))
        assert gone | {"others": 0} == {"runs": 2, "jobs": 4, "events": 4, "states": 2, "others": 0}
        assert [row.id for row in await store.runs()] == ["new", "open"]
        assert await store.streams() == ["nq:flow:new", "nq:flow:open"]
        assert [row.key for row in await store.states("")] == ["run/new/cart"]
        assert [await state_of(store, id) for id in ("old.a.1", "old.er.b.1", "new.a.1")] == [
            None,
            None,
            "completed",
        ]
        assert await apply(store, unit(waits=[SettleWait("wait-old", "resolved")])) == Refused("wait", "wait-old")

    async def test_a_swept_run_leaves_nothing_behind(self, store: Store, clock: FakeClock) -> None:
        await _closed_run(store, "r")
        await store.sweep(Retention(runs_before=FAR))
        await apply(store, unit(run=run("r"), events=[event(stream="nq:flow:r")], jobs=[job("r.a.1", run="r")]))
        assert seqs(await store.read("nq:flow:r")) == [1]
        await apply(store, unit(claim=await claim_one(store), outcome=RetryAt(0, ERROR)))
        assert (await claim_one(store)).memos == {}

    async def test_age_counts_from_when_a_run_last_moved(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r")))
        clock.advance("1h")
        await apply(store, unit(run=run("r", 1, status="completed", closed=True)))
        assert (await store.sweep(Retention(runs_before=clock.now_ms())))["runs"] == 0
        assert (await store.sweep(Retention(runs_before=clock.now_ms() + 1)))["runs"] == 1

    async def test_a_closed_run_that_moves_again_stays_longer(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r", status="completed", closed=True)))
        clock.advance("1h")
        await apply(store, unit(run=run("r", 1, status="completed", closed=True)))
        assert (await store.sweep(Retention(runs_before=clock.now_ms())))["runs"] == 0
        assert (await store.sweep(Retention(runs_before=clock.now_ms() + 1)))["runs"] == 1

    async def test_open_runs_are_never_swept_nor_counted(self, store: Store, clock: FakeClock) -> None:
        for n in range(3):
            await _closed_run(store, f"c{n}")
            await apply(store, unit(run=run(f"o{n}"), jobs=[job(f"o{n}.a.1", "live", run=f"o{n}")]))
            clock.advance("1s" if n else 0)
        assert (await store.sweep(Retention(keep_runs=2)))["runs"] == 1
        assert sorted(row.id for row in await store.runs()) == ["c1", "c2", "o0", "o1", "o2"]
        clock.advance("30d")
        assert (await store.sweep(Retention(runs_before=FAR, keep_runs=0)))["runs"] == 2
        assert sorted(row.id for row in await store.runs()) == ["o0", "o1", "o2"]
        assert len(await claim(store, "live")) == 3

    async def test_a_closed_run_whose_job_is_still_held_is_not_swept(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")]))
        one = await claim_one(store)
        await apply(store, unit(run=run("r", 1, status="cancelled", closed=True)))
        assert (await store.sweep(Retention(runs_before=FAR, keep_runs=0)))["runs"] == 0
        assert isinstance(await apply(store, unit(claim=one, outcome=Completed())), Committed)
        assert (await store.sweep(Retention(runs_before=FAR)))["runs"] == 1

    async def test_an_expired_lease_does_not_keep_a_closed_run(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")]))
        await claim_one(store)
        await apply(store, unit(run=run("r", 1, status="cancelled", closed=True)))
        clock.advance("1h")
        assert (await store.sweep(Retention(runs_before=FAR)))["runs"] == 1

    async def test_a_swept_run_removes_the_streams_of_its_triggers(self, store: Store) -> None:
        for id in ("r", "other"):
            trigger = wait(f"t-{id}", id, kind="trigger")
            await apply(store, unit(run=run(id), waits=[trigger], events=[event(stream=f"nq:trigger:t-{id}")]))
        await apply(store, unit(run=run("r", 1, status="cancelled", closed=True)))
        await store.sweep(Retention(runs_before=FAR))
        assert await store.streams("nq:trigger:") == ["nq:trigger:t-other"]
        assert await store.wait_row("t-r") is None

    async def test_an_open_run_is_never_swept_however_old_it_is(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r")]))
        clock.advance("400d")
        assert (await store.sweep(Retention(runs_before=FAR, keep_runs=0)))["runs"] == 0
        assert [row.id for row in await store.waits(run="r")] == ["w"]

    async def test_events_of_queue_and_global_streams_by_count(self, store: Store) -> None:
        await add(store, job("j"))  # a job makes the queue known
        streams = (f"nq:queue:{QUEUE}", "nq:global", "nq:flow:r")
        await apply(store, unit(run=run("r"), events=[event(stream=name) for name in streams for _ in range(5)]))
        assert (await store.sweep(Retention(keep_events=2)))["events"] == 6
        assert [seqs(await store.read(name)) for name in streams] == [[4, 5], [4, 5], [1, 2, 3, 4, 5]]

    async def test_events_of_webhooks_and_entities(self, store: Store, clock: FakeClock) -> None:
        streams = ["nq:webhook:orders/paid", "nq:entity:user-7", "nq:entity:user-8", "nq:flow:r"]
        for _ in range(4):
            await apply(store, unit(events=[event(stream=name) for name in streams]))
            clock.advance("1h")
        hour_ago = clock.now_ms() - 3_600_000
        assert (await store.sweep(Retention(events_before=hour_ago)))["events"] == 3
        assert [seqs(await store.read(name)) for name in streams] == [[4], *[[1, 2, 3, 4]] * 3]
        assert (await store.sweep(Retention(keep_entity_events=3)))["events"] == 2
        assert (await store.sweep(Retention(entity_events_before=hour_ago), limit=1))["events"] == 1
        while (await store.sweep(Retention(entity_events_before=hour_ago), limit=1))["events"]:
            pass
        assert [seqs(await store.read(name)) for name in streams] == [[4], [4], [4], [1, 2, 3, 4]]
        assert (await apply(store, unit(events=[event(stream="nq:entity:user-7")]))).events[0][1] == 5  # type: ignore[union-attr]

    async def test_every_stream_has_its_turn(self, store: Store) -> None:
        streams = [f"nq:entity:{n:03}" for n in range(500)]
        await apply(store, unit(events=[event(stream=name) for name in [*streams, streams[-1]]]))
        removed = [(await store.sweep(Retention(keep_entity_events=1)))["events"] for _ in range(10)]
        assert sum(removed) == 1
        assert seqs(await store.read(streams[-1])) == [2]

    async def test_finished_deliveries_have_their_own_count(self, store: Store) -> None:
        for n in range(4):
            await _done(store, f"d{n}", DELIVERIES)
            await _done(store, f"j{n}")
        assert (await store.sweep(Retention(keep_deliveries=1)))["jobs"] == 3
        assert [await state_of(store, f"d{n}") for n in range(4)] == [None, None, None, "completed"]
        assert [await state_of(store, f"j{n}") for n in range(4)] == ["completed"] * 4
        assert (await store.sweep(Retention(keep_jobs=0, keep_deliveries=9)))["jobs"] == 5

    async def test_a_swept_job_removes_its_memos(self, store: Store) -> None:
        one = await add_and_claim(store, "j")
        await apply(store, unit(claim=one, outcome=Completed(), memos=[Memo("j", "rate#1", b"1")]))
        await store.sweep(Retention(jobs_before=FAR))
        await apply(store, unit(claim=await add_and_claim(store, "j"), outcome=RetryAt(0, ERROR)))
        assert (await claim_one(store)).memos == {}

    async def test_old_events_of_queue_and_global_streams(self, store: Store, clock: FakeClock) -> None:
        streams = [f"nq:queue:{QUEUE}", "nq:global", "nq:flow:r", "nq:entity:e"]
        await add(store, job("j"))
        for _ in range(2):
            await apply(store, unit(events=[event(stream=stream) for stream in streams]))
            clock.advance("1h")
        gone = await store.sweep(Retention(events_before=clock.now_ms() - 3_600_000))
        assert gone["events"] == 2
        assert [len(await store.read(stream)) for stream in streams] == [1, 1, 2, 2]

    async def test_every_sweep_removes_expired_state(self, store: Store, clock: FakeClock) -> None:
        end = clock.now_ms() + 1000
        await apply(store, unit(state=[StateWrite("a", b"1", expires=end), StateWrite("b", b"1", expires=end + 1)]))
        await apply(store, unit(state=[StateWrite("c", b"1")]))
        clock.set_ms(end)
        assert (await store.sweep(Retention()))["states"] in (0, 1)  # a store may expire keys by itself
        assert [row.key for row in await store.states("")] == ["b", "c"]

    async def test_a_swept_job_frees_its_id(self, store: Store) -> None:
        await _done(store, "j")
        await store.sweep(Retention(jobs_before=FAR))
        assert await apply(store, unit(jobs=[job("j")])) == Committed(added=[True])

    async def test_describe_names_the_store(self, store: Store) -> None:
        assert isinstance((await store.describe())["store"], str)


async def _done(store: Store, id: str, queue: str = QUEUE) -> None:
    await apply(store, unit(claim=await add_and_claim(store, id, queue), outcome=Completed()))


async def _closed_run(store: Store, id: str) -> None:
    """Add a closed run with two jobs, two events, a memo, a wait and a key of its own state."""
    stream, queue = f"nq:flow:{id}", f"of-{id}"
    await apply(
        store,
        unit(
            run=run(id),
            jobs=[job(f"{id}.a.1", queue, run=id), job(f"{id}.b.1", queue, run=id)],
            events=[event(stream=stream), event(stream=stream)],
            waits=[wait(f"wait-{id}", id)],
            state=[StateWrite(f"run/{id}/cart", b"1")],
            memos=[Memo(f"{id}.a.1", "rate#1", b"1")],
        ),
    )
    await apply(store, unit(claim=await claim_one(store, queue), outcome=Completed()))
    await apply(store, unit(run=run(id, 1, status="completed", closed=True)))
