"""Schedules: kept by the store, moved on by the unit that fires them, once a slot."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from ...ports.store import ScheduleRow, Store
from ...ports.unit import Committed, Refused, ScheduleMove
from ..clock import START_MS, FakeClock
from .samples import STREAM, add, apply, event, job, state_of, unit
from .subject import StoreUnderTest

SLOT = START_MS + 1000
ROW = ScheduleRow("nightly", b'{"cron":"0 3 * * *"}', b'{"flow":"shop"}', next=SLOT)
FIRED = ScheduleMove("nightly", SLOT, SLOT + 1000)


async def put(store: Store, *rows: ScheduleRow) -> None:
    for row in rows:
        assert await store.put_schedule(row, None)


class SchedulesContract(StoreUnderTest):
    """One slot fires once, however many schedulers look."""

    async def test_a_schedule_as_it_was_put_in(self, store: Store) -> None:
        assert await store.schedules() == []
        assert await store.schedule("nightly") is None
        whole = replace(ROW, last=5, paused=True, fired=7)
        await put(store, whole)
        assert await store.schedules() == [whole]
        assert await store.schedule("nightly") == whole

    async def test_schedules_are_listed_by_id(self, store: Store) -> None:
        await put(store, *(replace(ROW, id=id) for id in ("c", "a", "b")))
        assert [row.id for row in await store.schedules()] == ["a", "b", "c"]

    async def test_what_is_there_is_not_put_in_as_new(self, store: Store) -> None:
        await put(store, ROW)
        assert not await store.put_schedule(replace(ROW, next=9), None)
        assert await store.schedules() == [ROW]

    async def test_it_is_changed_from_what_it_was(self, store: Store) -> None:
        await put(store, ROW, replace(ROW, id="other"))
        changed = ScheduleRow("nightly", b'{"every":5}', b'{"job":"x"}', None, 3, True, 2)
        assert await store.put_schedule(changed, ROW)
        assert await store.schedules() == [changed, replace(ROW, id="other")]

    @pytest.mark.parametrize(
        "other",
        [
            replace(ROW, spec=b"{}"),
            replace(ROW, target=b"{}"),
            replace(ROW, next=None),
            replace(ROW, next=SLOT + 1),
            replace(ROW, last=5),
            replace(ROW, paused=True),
            replace(ROW, fired=1),
        ],
    )
    async def test_it_is_not_changed_if_it_is_another_by_now(self, store: Store, other: ScheduleRow) -> None:
        await put(store, other)
        assert not await store.put_schedule(replace(ROW, next=9), ROW)
        assert await store.schedules() == [other]

    async def test_what_is_not_there_is_not_changed(self, store: Store) -> None:
        assert not await store.put_schedule(ROW, ROW)
        assert await store.schedules() == []

    async def test_a_unit_goes_with_the_change_or_not_at_all(self, store: Store) -> None:
        await put(store, ROW)
        passed = replace(ROW, next=SLOT + 1000)
        with store.signals.listen(f"stream:{STREAM}") as listener:
            assert await store.put_schedule(passed, ROW, unit(events=[event("schedule.skipped")]))
            assert await listener.wait(5)
        assert not await store.put_schedule(passed, ROW, unit(events=[event("schedule.skipped")], jobs=[job("j")]))
        assert [e.kind for e in await store.read(STREAM)] == ["schedule.skipped"]
        assert await state_of(store, "j") is None

    async def test_of_many_changes_of_one_schedule_one_is_made(self, store: Store) -> None:
        await put(store, ROW)
        changes = [store.put_schedule(replace(ROW, fired=n + 1), ROW) for n in range(10)]
        assert sum(await asyncio.gather(*changes)) == 1

    async def test_remove(self, store: Store) -> None:
        await put(store, ROW)
        assert await store.remove_schedule("nightly")
        assert not await store.remove_schedule("nightly")
        assert await store.schedules() == []
        assert await store.next_schedule() is None

    async def test_it_is_removed_only_if_it_still_is_for_the_same(self, store: Store) -> None:
        await put(store, ROW)
        assert not await store.remove_schedule("nightly", replace(ROW, spec=b"{}"))
        assert not await store.remove_schedule("nightly", replace(ROW, target=b"{}"))
        await apply(store, unit(schedule=FIRED))
        assert await store.remove_schedule("nightly", ROW)  # that it fired meanwhile makes it no other

    async def test_due_ones_earliest_first(self, store: Store, clock: FakeClock) -> None:
        slots = (("b", 2000), ("a", 3000), ("c", 1000), ("d", 3000), ("late", 3001))
        await put(store, *(replace(ROW, id=id, next=START_MS + ms) for id, ms in slots))
        await put(store, replace(ROW, id="ended", next=None), replace(ROW, id="paused", next=500, paused=True))
        assert (await store.due_schedules()).rows == []
        clock.set_ms(START_MS + 3000)
        due = await store.due_schedules()
        assert ([row.id for row in due.rows], due.now) == (["c", "b", "a", "d"], START_MS + 3000)
        clock.set_ms(START_MS + 999)  # none early, also if the clock goes back
        assert (await store.due_schedules()).rows == []

    async def test_due_ones_page_by_page(self, store: Store) -> None:
        rows = [replace(ROW, id=f"s{n}", next=START_MS - n // 2) for n in range(7)]
        await put(store, *rows)
        found: list[ScheduleRow] = []
        while page := (await store.due_schedules(found[-1] if found else None, 2)).rows:
            assert len(page) <= 2
            found += page
        assert [row.id for row in found] == ["s6", "s4", "s5", "s2", "s3", "s0", "s1"]

    async def test_when_the_next_one_is_due(self, store: Store) -> None:
        assert await store.next_schedule() is None
        await put(store, replace(ROW, id="paused", next=500, paused=True), replace(ROW, id="ended", next=None))
        assert await store.next_schedule() is None
        await put(store, replace(ROW, id="b", next=2000), replace(ROW, id="a", next=1500))
        assert await store.next_schedule() == 1500
        assert await store.next_schedule(1499) == 1500
        assert await store.next_schedule(1500) == 2000
        assert await store.next_schedule(2000) is None

    async def test_firing_moves_it_on(self, store: Store) -> None:
        await put(store, ROW)
        assert await apply(store, unit(schedule=FIRED, jobs=[job("nightly.1")])) == Committed(added=[True])
        assert await store.schedules() == [replace(ROW, next=SLOT + 1000, last=SLOT, fired=1)]
        assert await apply(store, unit(schedule=FIRED)) == Refused("schedule", "nightly")

    async def test_the_last_slot_ends_it(self, store: Store, clock: FakeClock) -> None:
        await put(store, ROW)
        await apply(store, unit(schedule=ScheduleMove("nightly", SLOT, None)))
        assert await store.schedules() == [replace(ROW, next=None, last=SLOT, fired=1)]
        clock.advance("300d")
        assert (await store.due_schedules()).rows == []
        assert await store.next_schedule() is None

    async def test_of_many_schedulers_one_fires_a_slot(self, store: Store) -> None:
        await put(store, ROW)
        fires = [unit(schedule=FIRED, jobs=[job(f"by.{n}")]) for n in range(10)]
        receipts = await asyncio.gather(*(apply(store, fire) for fire in fires))
        assert sum(isinstance(r, Committed) for r in receipts) == 1
        assert sum([await state_of(store, f"by.{n}") == "waiting" for n in range(10)]) == 1
        assert (await store.schedules())[0].fired == 1

    async def test_a_slot_that_fired_is_not_passed_as_well(self, store: Store) -> None:
        await put(store, ROW)
        await apply(store, unit(schedule=FIRED))
        assert not await store.put_schedule(replace(ROW, next=SLOT + 1000), ROW)
        assert (await store.schedules())[0].fired == 1

    async def test_a_slot_whose_job_exists_still_moves_on(self, store: Store) -> None:
        await put(store, ROW)
        await add(store, job("nightly.1"))
        assert await apply(store, unit(schedule=FIRED, jobs=[job("nightly.1")])) == Committed(added=[False])
        assert await store.next_schedule() == SLOT + 1000
