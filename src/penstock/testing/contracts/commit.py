"""A unit is applied completely: every part of it, in one write, in order; also with several commits in flight."""

from __future__ import annotations

import asyncio

from ...core.events import Event
from ...ports.store import Store
from ...ports.unit import Committed, Completed, Conflict, JobState, Memo, Released, RunWrite, SettleWait, Unit
from ..clock import FakeClock
from .samples import (
    QUEUE,
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
    seqs,
    state_of,
    unit,
)
from .seeded_store import JOB, KEY, OTHER_STREAM, RUN, SCHEDULE, SLOT, SPARE, seed_store
from .store_under_test import StoreUnderTest, take_snapshot


class CommitContract(StoreUnderTest):
    """What an accepted unit writes."""

    async def test_whole_unit_writes_every_part(self, store: Store, clock: FakeClock) -> None:
        seeded = await seed_store(store)
        now = clock.advance("5s")
        receipt = await apply(store, seeded.full_unit())

        assert receipt == Committed(events=[(now, 3), (now, 1), (now, 4)], added=[True, True])
        done = await store.job(JOB)
        assert done is not None
        assert (done.state, done.result, done.progress) == (
            JobState.COMPLETED,
            b'{"paid":true}',
            b'{"percent":100}',
        )
        assert done.finished == now
        row = await store.run(RUN)
        assert row is not None
        assert (row.version, row.record, row.status, row.closed) == (2, b'{"at":1}', "closing", False)
        assert (row.created, row.updated) == (now - 5000, now)
        assert [e.kind for e in await store.read(STREAM, after=f"{now}-2")] == ["order.paid", "order.closed"]
        assert [e.kind for e in await store.read(OTHER_STREAM)] == ["step.completed"]
        assert [await state_of(store, id) for id in ("r1.ship.1", "mail", SPARE)] == [
            "waiting",
            "waiting",
            None,
        ]
        assert [(s.key, s.value) for s in await store.states("")] == [(KEY, b'"full"'), ("seen", b"true")]
        (schedule,) = await store.schedules()
        assert (schedule.id, schedule.next, schedule.last, schedule.fired) == (
            SCHEDULE,
            SLOT + 60_000,
            SLOT,
            1,
        )
        assert (await apply(store, unit(waits=[SettleWait("wait-2", "resolved")]))) == Committed()

    async def test_an_empty_commit_and_an_empty_unit_change_nothing(self, store: Store) -> None:
        before = await take_snapshot(store)
        assert (await store.commit([])).receipts == []
        assert await apply(store, unit()) == Committed()
        assert await take_snapshot(store) == before

    async def test_payload_and_opts_come_back_byte_for_byte(self, store: Store) -> None:
        # Spaces, empty containers, big integers, text beyond the BMP: parsing and re-encoding changes some of these.
        raw = '{ "a":[] ,"b":{},"c":9007199254740991,"d":1.0,"e":"\U0001f9ea\\u0000"}'.encode()
        await add(store, job("j", opts=raw))
        await store.commit([unit(run=run("r", record=raw), memos=[Memo("j", "m", raw)])])
        row, kept = await store.job("j"), await store.run("r")
        assert row is not None
        assert kept is not None
        assert (row.payload, row.opts, kept.record) == (b'{"job":"j"}', raw, raw)
        assert (await claim_one(store)).opts == raw

    async def test_adding_an_id_that_exists_changes_nothing(self, store: Store) -> None:
        await add(store, job("j", priority=3))
        before = await store.job("j")
        receipt = await apply(store, unit(jobs=[job("j", "elsewhere", priority=9), job("k"), job("k")]))
        assert receipt == Committed(added=[False, True, False])
        assert await store.job("j") == before

    async def test_a_finished_job_keeps_its_id(self, store: Store) -> None:
        claim = await add_and_claim(store, "j")
        await apply(store, unit(claim=claim, outcome=Completed()))
        assert await apply(store, unit(jobs=[job("j")])) == Committed(added=[False])
        assert await state_of(store, "j") == "completed"

    async def test_the_added_event_is_appended_only_for_a_new_id(self, store: Store) -> None:
        new, old = (
            job("new", added=event("job.added", data="new")),
            job("old", added=event("job.added", data="old")),
        )
        await add(store, job("old"))
        receipt = await apply(store, unit(events=[event("first")], jobs=[old, new]))
        assert receipt == Committed(receipt.events, added=[False, True])  # type: ignore[union-attr]
        assert [(e.seq, e.kind, e.data) for e in await store.read(STREAM)] == [
            (1, "first", None),
            (2, "job.added", "new"),
        ]
        # A repeated unit adds nothing, so the store need not remember units that only add jobs.
        again = unit(jobs=[new])
        for _ in range(2):
            await apply(store, again)
        assert len(await store.read(STREAM)) == 2

    async def test_a_removed_job_may_be_added_again_by_the_same_unit(self, store: Store) -> None:
        await add(store, job("j", priority=3))
        assert await apply(store, unit(removes=["j"], jobs=[job("j", priority=1)])) == Committed(added=[True])
        row = await store.job("j")
        assert row is not None
        assert row.priority == 1

    async def test_events_are_gapless_in_each_stream(self, store: Store) -> None:
        a, b = "nq:flow:a", "nq:flow:b"
        units = [unit(events=[event("x", s) for s in mix]) for mix in ([a, b, a], [b], [a, a, b, b, a])]
        reply = await store.commit(units)
        positions = [r.events for r in reply.receipts if isinstance(r, Committed)]
        assert [[seq for _, seq in found] for found in positions] == [[1, 1, 2], [2], [3, 4, 3, 4, 5]]
        assert seqs(await store.read(a)) == [1, 2, 3, 4, 5]
        assert seqs(await store.read(b)) == [1, 2, 3, 4]

    async def test_event_time_never_goes_back_when_the_clock_does(self, store: Store, clock: FakeClock) -> None:
        high = clock.now_ms()
        await apply(store, unit(events=[event()]))
        clock.set_ms(high - 3_600_000)
        receipt = await apply(store, unit(events=[event(), event("fresh", "nq:entity:new")]))
        assert receipt == Committed(events=[(high, 2), (high - 3_600_000, 1)])
        clock.set_ms(high + 1)
        await apply(store, unit(events=[event()]))
        assert [e.id for e in await store.read(STREAM)] == [f"{high}-1", f"{high}-2", f"{high + 1}-3"]

    async def test_an_event_is_read_as_it_was_written(self, store: Store) -> None:
        data = {"list": [], "map": {}, "text": "\U0001f9ea \u2028", "n": 9007199254740991, "none": None}
        ((ms, seq),) = (await apply(store, unit(events=[event("order.paid", data=data)]))).events  # type: ignore[union-attr]
        (read,) = await store.read(STREAM)
        assert read == Event(f"{ms}-{seq}", read.ts, "order.paid", "order/7", data=data)
        assert read.ts == "2023-11-14T22:13:20.000Z"

    async def test_units_of_one_commit_may_build_on_each_other(self, store: Store) -> None:
        chain = [unit(run=run("r", n, b'{"at":%d}' % n), events=[event(stream="nq:flow:r")]) for n in range(4)]
        reply = await store.commit(chain)
        assert all(isinstance(r, Committed) for r in reply.receipts)
        row = await store.run("r")
        assert row is not None
        assert (row.version, row.record) == (4, b'{"at":3}')

    async def test_a_refused_unit_makes_its_successors_conflict(self, store: Store) -> None:
        await apply(store, unit(once_key="k"))
        first, second = unit(run=run("r"), once_key="k"), unit(run=run("r", 1), events=[event()])
        reply = await store.commit([first, second, unit(events=[event("free")])])
        assert reply.receipts[1] == Conflict(0, None)
        assert isinstance(reply.receipts[2], Committed)
        assert await store.run("r") is None
        assert [e.kind for e in await store.read(STREAM)] == ["free"]

    async def test_of_many_commits_on_one_version_one_wins(self, store: Store) -> None:
        await apply(store, unit(run=run("r")))

        async def decide(n: int) -> Unit | None:
            mine = unit(run=run("r", 1, b'{"by":%d}' % n), events=[event(data=n)])
            return mine if isinstance(await apply(store, mine), Committed) else None

        (winner,) = [u for u in await asyncio.gather(*map(decide, range(20))) if u is not None]
        assert isinstance(winner.run, RunWrite)
        row = await store.run("r")
        assert row is not None
        assert (row.version, row.record) == (2, winner.run.record)
        assert len(await store.read(STREAM)) == 1

    async def test_concurrent_commits_to_one_stream_stay_gapless(self, store: Store) -> None:
        await asyncio.gather(*(apply(store, unit(events=[event(data=n), event(data=n)])) for n in range(40)))
        read = await store.read(STREAM, limit=1000)
        assert seqs(read) == list(range(1, 81))
        data = [e.data for e in read]
        assert data[::2] == data[1::2]  # events of one unit are adjacent in a stream
        assert sorted(data[::2]) == list(range(40))

    async def test_a_claim_with_a_commit_sees_that_commit(self, store: Store) -> None:
        claim = await add_and_claim(store, "j1")
        reply = await store.commit([unit(claim=claim, outcome=Completed(), jobs=[job("j2")])], claim_request())
        assert isinstance(reply.receipts[0], Committed)
        assert names(reply.claimed) == ["j2"]

    async def test_a_memo_is_written_once(self, store: Store) -> None:
        claim = await add_and_claim(store, "j")
        await apply(store, unit(claim=claim, memos=[Memo("j", "rate#1", b"1"), Memo("j", "rate#1", b"2")]))
        await apply(store, unit(claim=claim, memos=[Memo("j", "rate#1", b"3"), Memo("j", "rate#2", b"4")]))
        await apply(store, unit(claim=claim, outcome=Released()))
        assert (await claim_one(store)).memos == {"rate#1": b"1", "rate#2": b"4"}


class ProfileContract(StoreUnderTest):
    """A store's profile is true: as many commits as it allows in flight keep the order it promises."""

    async def test_profile_allows_at_least_one_commit(self, store: Store) -> None:
        profile = store.profile
        assert profile == store.profile
        assert profile.max_commits_in_flight >= 1
        assert profile.max_unordered_finishes >= 1
        assert profile.prefetch >= 0

    async def test_its_clock_and_its_replies_show_one_time(self, store: Store, clock: FakeClock) -> None:
        now = clock.advance("5s")
        assert store.clock.now_ms() == now
        assert (await store.commit([unit(events=[event("order.created")])])).now == now

    async def test_commits_in_flight_are_applied_in_the_order_of_the_calls(self, store: Store) -> None:
        lanes = store.profile.max_commits_in_flight
        for round in range(10):
            units = [unit(events=[event(f"order.n{round}-{n}")]) for n in range(lanes)]
            replies = await asyncio.gather(*(store.commit([one]) for one in units))
            assert [type(reply.receipts[0]) for reply in replies] == [Committed] * lanes
        events = await store.read(STREAM, limit=1000)
        assert [one.kind for one in events] == [f"order.n{round}-{n}" for round in range(10) for n in range(lanes)]
        assert seqs(events) == list(range(1, len(events) + 1))

    async def test_finishes_in_flight_are_all_applied(self, store: Store) -> None:
        lanes = store.profile.max_unordered_finishes
        await add(store, *(job(f"j{n}") for n in range(lanes * 5)))
        claims = await claim(store, limit=lanes * 5)
        for n in range(0, len(claims), lanes):
            batch = [unit(claim=one, outcome=Completed(b"1")) for one in claims[n : n + lanes]]
            replies = await asyncio.gather(*(store.commit([one]) for one in batch))
            assert all(isinstance(reply.receipts[0], Committed) for reply in replies)
        (row,) = [row for row in await store.queues() if row.name == QUEUE]
        assert row.counts.get("completed") == lanes * 5

    async def test_rewind_epoch_is_steady_while_the_server_is(self, store: Store) -> None:
        await apply(store, unit(events=[event()]))
        before = store.rewind_epoch
        await apply(store, unit(events=[event()]))
        assert store.rewind_epoch == before
        assert store.profile.may_rewind or before == 0
