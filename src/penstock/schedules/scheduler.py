"""The scheduler: fires the slots of schedules that are due. The store's compare-and-set makes each slot fire once."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

import msgspec

from ..core.errors import StoreError, UnreadableRecord
from ..core.outage_retry import OutageLog
from ..ports.store import ScheduleRow, Store
from .spec import (
    FireSlot,
    HoldSlot,
    LastSlotWork,
    ScheduleSpec,
    SkipSlot,
    Target,
    decide,
    decode_spec,
    decode_target,
    oldest_catch_up_slot,
)

log = logging.getLogger("penstock.scheduler")
MAX_IDLE_S = 5.0
STUCK_RETRY_S = 1.0  # delay before a slot that could not fire is retried
PAGE = 100
MAX_SLOTS_IN_A_ROW = 100  # of one schedule: one that catches up must not delay the others


class SlotStarter(Protocol):
    """Starts the flows and jobs of schedules."""

    async def prepare(self) -> None:
        """Prepare for a poll of the store; called before each."""
        ...

    async def last_work(self, row: ScheduleRow, target: Target) -> LastSlotWork | None:
        """Return what the last slot started, or None if it is no longer stored."""
        ...

    async def fire(self, row: ScheduleRow, target: Target, decision: FireSlot) -> bool:
        """Start the work of a slot and move the schedule on, in one commit. Return False if another scheduler did."""
        ...

    async def skip(self, row: ScheduleRow, decision: SkipSlot) -> bool:
        """Move the schedule on and record why the slot was skipped. Return False if another scheduler did."""
        ...


class Scheduler:
    """Fires slots that are due. Any number of schedulers may run; each slot fires once."""

    def __init__(self, store: Store, starter: SlotStarter) -> None:
        self._store = store
        self._starter = starter
        self._outages = OutageLog()
        self._now = 0
        self._stuck: dict[str, int] = {}  # schedule -> the slot that could not fire
        self._topics: frozenset[str] = frozenset()  # signals of the runs that held slots wait for

    async def run(self) -> None:
        topics: frozenset[str] = frozenset()
        while True:
            with self._store.signals.listen("schedules", *topics) as listener:
                while True:
                    pause = await self._poll()
                    if self._topics != topics:
                        topics = self._topics  # poll again: a run may have ended before we listened for it
                        break
                    await listener.wait(pause)

    async def _poll(self) -> float:
        """Fire what is due and return the seconds until the next poll."""
        try:
            await self.catch_up()
            due = await self._store.next_schedule(self._now)
        except StoreError as problem:
            self._outages.report_failure("cannot read schedules, retrying", problem)
            return STUCK_RETRY_S
        self._outages.report_answer()
        pause = MAX_IDLE_S if due is None else min(max((due - self._now) / 1000, 0.001), MAX_IDLE_S)
        return min(pause, STUCK_RETRY_S) if self._stuck else pause

    async def catch_up(self) -> None:
        """Store the declared schedules and fire what is due, until no slot is left that can fire now."""
        await self._starter.prepare()
        while await self.fire_due():
            pass

    async def fire_due(self) -> int:
        """Fire every schedule that is due now. Return how many slots this scheduler fired or skipped."""
        moved = 0
        held: set[str] = set()
        stuck: dict[str, int] = {}
        last: ScheduleRow | None = None
        while True:
            due = await self._store.due_schedules(last, PAGE)
            self._now = due.now
            for row in due.rows:
                moved += await self._try_fire(row, due.now, held, stuck)
            if len(due.rows) < PAGE:
                break
            last = due.rows[-1]
        self._stuck, self._topics = stuck, frozenset(held)
        return moved

    async def _try_fire(self, row: ScheduleRow, now: int, held: set[str], stuck: dict[str, int]) -> int:
        assert row.next is not None
        try:
            return await self._fire_slots(row, now, held, stuck)
        except asyncio.CancelledError:
            raise
        except UnreadableRecord as problem:
            # No scheduler can fire it. Paused, it is not due again until it is added again.
            if await self._store.put_schedule(msgspec.structs.replace(row, paused=True), row):
                log.error("paused schedule %s: %s", row.id, problem)
            return 0
        except Exception:
            # This process may not have the flow; another one may.
            stuck[row.id] = row.next
            if self._stuck.get(row.id) != row.next:  # log each slot once
                log.exception("schedule %s could not fire its slot %d", row.id, row.next)
            return 0

    async def _fire_slots(self, row: ScheduleRow, now: int, held: set[str], stuck: dict[str, int]) -> int:
        """Fire or skip the due slots of one schedule until another scheduler moves it."""
        spec, target = decode_spec(row), decode_target(row)
        assert row.next is not None
        oldest = oldest_catch_up_slot(spec, row.next, now)
        for moved in range(MAX_SLOTS_IN_A_ROW):
            if row.next is None or row.next > now:
                return moved
            match decide(spec, row, now, await self._last_work(spec, row, target), oldest):
                case HoldSlot(blocked_by):
                    # A run signals its end; a plain job does not, so it is polled.
                    if target.flow is not None:
                        held.add(f"run:{blocked_by}")
                    else:
                        stuck[row.id] = row.next
                    return moved
                case SkipSlot(next_) as decision:
                    has_moved = await self._starter.skip(row, decision)
                    row = msgspec.structs.replace(row, next=next_)
                case FireSlot(move) as decision:
                    has_moved = await self._starter.fire(row, target, decision)
                    row = msgspec.structs.replace(row, next=move.next, last=move.slot, fired=row.fired + 1)
            if not has_moved:
                return moved
        return MAX_SLOTS_IN_A_ROW

    async def _last_work(self, spec: ScheduleSpec, row: ScheduleRow, target: Target) -> LastSlotWork | None:
        if spec.overlap == "allow" or row.last is None:
            return None
        return await self._starter.last_work(row, target)
