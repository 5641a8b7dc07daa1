"""Schedules: kept by the store, moved to the next slot by the unit that fires them."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from ...ports.store import ScheduleRow, Store
from ...ports.unit import Committed, Refused, ScheduleMove
from ..clock import START_MS, FakeClock
from .samples import STREAM, add, apply, event, job, state_of, unit
from .store_under_test import StoreUnderTest

SLOT = START_MS + 1000
ROW = ScheduleRow("nightly", b'{"cron":"0 3 * * *"}', b'{"flow":"shop"}', next=SLOT)
FIRED = ScheduleMove("nightly", SLOT, SLOT + 1000)


async def put(store: Store, *rows: ScheduleRow) -> None:
    for row in rows:
        assert await store.put_schedule(row, None)


class SchedulesContract(StoreUnderTest):
    """Each slot fires once, with any number of schedulers."""

    async def test_a_schedule_is_read_as_it_was_written(self, store: Store) -> None:
        assert await store.schedules() == []
        assert await store.schedule("nightly") is None
        whole = replace(ROW, last=5, paused=True, fired=7)
        await put(store, whole)
        assert await store.schedules() == [whole]
        assert await store.schedule("nightly") == whole

    async def test_schedules_are_listed_by_id(self, store: Store) -> None:
        await put(store, *(replace(ROW, id=id) for id in ("c", "a", "b")))
        assert [row.id for row in await store.schedules()] == ["a", "b", "c"]

    async def test_an_existing_schedule_is_not_added_again(self, store: Store) -> None:
        await put(store, ROW)
        assert not await store.put_schedule(replace(ROW, next=9), None)
        assert await store.schedules() == [ROW]

    async def test_a_schedule_is_changed_if_it_is_as_expected(self, store: Store) -> None:
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
    async def test_a_schedule_is_not_changed_if_it_differs(self, store: Store, other: ScheduleRow) -> None:
        await put(store, other)
        assert not await store.put_schedule(replace(ROW, next=9), ROW)
        assert await store.schedules() == [other]

    async def test_a_missing_schedule_is_not_changed(self, store: Store) -> None:
        assert not await store.put_schedule(ROW, ROW)
        assert await store.schedules() == []

    async def test_a_unit_is_applied_only_with_the_change(self, store: Store) -> None:
        await put(store, ROW)
        skipped = replace(ROW, next=SLOT + 1000)
        with store.signals.listen(f"stream:{STREAM}") as listener:
            assert await store.put_schedule(skipped, ROW, unit(events=[event("schedule.skipped")]))
            assert await listener.wait(5)
        assert not await store.put_schedule(skipped, ROW, unit(events=[event("schedule.skipped")], jobs=[job("j")]))
        assert [e.kind for e in await store.read(STREAM)] == ["schedule.skipped"]
        assert await state_of(store, "j") is None

    async def test_one_of_many_concurrent_changes_wins(self, store: Store) -> None:
        await put(store, ROW)
        changes = [store.put_schedule(replace(ROW, fired=n + 1), ROW) for n in range(10)]
        assert sum(await asyncio.gather(*changes)) == 1

    async def test_remove(self, store: Store) -> None:
        await put(store, ROW)
        assert await store.remove_schedule("nightly")
        assert not await store.remove_schedule("nightly")
        assert await store.schedules() == []
        assert await store.next_schedule() is None

    async def test_a_schedule_is_removed_only_if_spec_and_target_match(self, store: Store) -> None:
        await put(store, ROW)
        assert not await store.remove_schedule("nightly", replace(ROW, spec=b"{}"))
        assert not await store.remove_schedule("nightly", replace(ROW, target=b"{}"))
        await apply(store, unit(schedule=FIRED))
        assert await store.remove_schedule("nightly", ROW)  # firing does not make it a different schedule

    async def test_due_schedules_earliest_first(self, store: Store, clock: FakeClock) -> None:
        slots = (("b", 2000), ("a", 3000), ("c", 1000), ("d", 3000), ("late", 3001))
        await put(store, *(replace(ROW, id=id, next=START_MS + ms) for id, ms in slots))
        await put(store, replace(ROW, id="ended", next=None), replace(ROW, id="paused", next=500, paused=True))
        assert (await store.due_schedules()).rows == []
        clock.set_ms(START_MS + 3000)
        due = await store.due_schedules()
        assert ([row.id for row in due.rows], due.now) == (["c", "b", "a", "d"], START_MS + 3000)
        clock.set_ms(START_MS + 999)  # none early, also if the clock goes back
        assert (await store.due_schedules()).rows == []

    async def test_due_schedules_with_pages(self, store: Store) -> None:
        rows = [replace(ROW, id=f"s{n}", next=START_MS - n // 2) for n in range(7)]
        await put(store, *rows)
        found: list[ScheduleRow] = []
        while page := (await store.due_schedules(found[-1] if found else None, 2)).rows:
            assert len(page) <= 2
            found += page
        assert [row.id for row in found] == ["s6", "s4", "s5", "s2", "s3", "s0", "s1"]

    async def test_when_the_next_schedule_is_due(self, store: Store) -> None:
        assert await store.next_schedule() is None
        await put(store, replace(ROW, id="paused", next=500, paused=True), replace(ROW, id="ended", next=None))
        assert await store.next_schedule() is None
        await put(store, replace(ROW, id="b", next=2000), replace(ROW, id="a", next=1500))
        assert await store.next_schedule() == 1500
        assert await store.next_schedule(1499) == 1500
        assert await store.next_schedule(1500) == 2000
        assert await store.next_schedule(2000) is None

    async def test_firing_moves_a_schedule_to_its_next_slot(self, store: Store) -> None:
        await put(store, ROW)
        assert await apply(store, unit(schedule=FIRED, jobs=[job("nightly.1")])) == Committed(added=[True])
        assert await store.schedules() == [replace(ROW, next=SLOT + 1000, last=SLOT, fired=1)]
        assert await apply(store, unit(schedule=FIRED)) == Refused("schedule", "nightly")

    async def test_the_last_slot_ends_a_schedule(self, store: Store, clock: FakeClock) -> None:
        await put(store, ROW)
        await apply(store, unit(schedule=ScheduleMove("nightly", SLOT, None)))
        assert await store.schedules() == [replace(ROW, next=None, last=SLOT, fired=1)]
        clock.advance("300d")
        assert (await store.due_schedules()).rows == []
        assert await store.next_schedule() is None

    async def test_one_of_many_schedulers_fires_a_slot(self, store: Store) -> None:
        await put(store, ROW)
        fires = [unit(schedule=FIRED, jobs=[job(f"by.{n}")]) for n in range(10)]
        receipts = await asyncio.gather(*(apply(store, fire) for fire in fires))
        assert sum(isinstance(r, Committed) for r in receipts) == 1
        assert sum([await state_of(store, f"by.{n}") == "waiting" for n in range(10)]) == 1
        assert (await store.schedules())[0].fired == 1

    async def test_a_fired_slot_cannot_be_skipped(self, store: Store) -> None:
        await put(store, ROW)
        await apply(store, unit(schedule=FIRED))
        assert not await store.put_schedule(replace(ROW, next=SLOT + 1000), ROW)
        assert (await store.schedules())[0].fired == 1

    async def test_a_slot_whose_job_exists_still_moves_the_schedule(self, store: Store) -> None:
        await put(store, ROW)
        await add(store, job("nightly.1"))
        assert await apply(store, unit(schedule=FIRED, jobs=[job("nightly.1")])) == Committed(added=[False])
        assert await store.next_schedule() == SLOT + 1000
