"""Schedules: kept by the store, moved on by the unit that fires them, once a slot."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from ...ports.store import ScheduleRow, Store
from ...ports.unit import Committed, Refused, ScheduleMove
from .samples import add, apply, job, state_of, unit
from .subject import StoreUnderTest

ROW = ScheduleRow("nightly", b'{"cron":"0 3 * * *"}', b'{"flow":"shop"}', next=1000)


class SchedulesContract(StoreUnderTest):
    """One slot fires once, however many schedulers look."""

    async def test_a_schedule_as_it_was_put_in(self, store: Store) -> None:
        assert await store.schedules() == []
        await store.upsert_schedule(ROW)
        assert await store.schedules() == [ROW]

    async def test_schedules_are_listed_by_id(self, store: Store) -> None:
        rows = [replace(ROW, id=id) for id in ("c", "a", "b")]
        for row in rows:
            await store.upsert_schedule(row)
        assert [row.id for row in await store.schedules()] == ["a", "b", "c"]

    async def test_putting_in_again_changes_it_and_keeps_its_history(self, store: Store) -> None:
        await store.upsert_schedule(ROW)
        await apply(store, unit(schedule=ScheduleMove("nightly", 1000, 2000)))
        changed = replace(ROW, spec=b'{"every":5}', target=b'{"job":"x"}', next=9000, paused=True)
        await store.upsert_schedule(changed)
        assert await store.schedules() == [replace(changed, last=1000, fired=1)]

    async def test_remove(self, store: Store) -> None:
        await store.upsert_schedule(ROW)
        assert await store.remove_schedule("nightly")
        assert not await store.remove_schedule("nightly")
        assert await store.schedules() == []
        assert await store.next_schedule() is None

    async def test_due_ones_earliest_first(self, store: Store) -> None:
        for id, next_ in (("b", 2000), ("a", 3000), ("c", 1000), ("ended", None), ("late", 3001)):
            await store.upsert_schedule(replace(ROW, id=id, next=next_))
        await store.upsert_schedule(replace(ROW, id="paused", next=500, paused=True))
        assert [row.id for row in await store.due_schedules(3000)] == ["c", "b", "a"]
        assert [row.id for row in await store.due_schedules(3000, limit=2)] == ["c", "b"]
        assert await store.due_schedules(999) == []

    async def test_when_the_next_one_is_due(self, store: Store) -> None:
        assert await store.next_schedule() is None
        await store.upsert_schedule(replace(ROW, id="paused", next=500, paused=True))
        await store.upsert_schedule(replace(ROW, id="ended", next=None))
        assert await store.next_schedule() is None
        await store.upsert_schedule(replace(ROW, id="b", next=2000))
        await store.upsert_schedule(replace(ROW, id="a", next=1500))
        assert await store.next_schedule() == 1500

    async def test_firing_moves_it_on(self, store: Store) -> None:
        await store.upsert_schedule(ROW)
        fire = unit(schedule=ScheduleMove("nightly", 1000, 2000), jobs=[job("nightly.1000")])
        assert await apply(store, fire) == Committed(added=[True])
        assert await store.schedules() == [replace(ROW, next=2000, last=1000, fired=1)]
        assert await apply(store, unit(schedule=ScheduleMove("nightly", 1000, 2000))) == Refused("schedule", "nightly")

    async def test_the_last_slot_ends_it(self, store: Store) -> None:
        await store.upsert_schedule(ROW)
        await apply(store, unit(schedule=ScheduleMove("nightly", 1000, None)))
        assert await store.schedules() == [replace(ROW, next=None, last=1000, fired=1)]
        assert await store.due_schedules(10**15) == []
        assert await store.next_schedule() is None

    async def test_of_many_schedulers_one_fires_a_slot(self, store: Store) -> None:
        await store.upsert_schedule(ROW)
        fires = [unit(schedule=ScheduleMove("nightly", 1000, 2000), jobs=[job(f"by.{n}")]) for n in range(10)]
        receipts = await asyncio.gather(*(apply(store, fire) for fire in fires))
        assert sum(isinstance(r, Committed) for r in receipts) == 1
        assert sum([await state_of(store, f"by.{n}") == "waiting" for n in range(10)]) == 1
        assert (await store.schedules())[0].fired == 1

    async def test_a_slot_whose_job_exists_still_moves_on(self, store: Store) -> None:
        await store.upsert_schedule(ROW)
        await add(store, job("nightly.1000"))
        fire = unit(schedule=ScheduleMove("nightly", 1000, 2000), jobs=[job("nightly.1000")])
        assert await apply(store, fire) == Committed(added=[False])
        assert await store.next_schedule() == 2000
