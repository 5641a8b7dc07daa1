"""The scheduler: looks for due schedules and has them fired. That a slot fires once is the store's compare-and-set."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

import msgspec

from ..core.errors import StoreError
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
MAX_IDLE_S = 5.0  # seconds
STUCK_RETRY_S = 1.0  # before a slot that could not fire is tried again
PAGE = 100
MAX_SLOTS_IN_A_ROW = 100  # of one schedule: one that catches up must not delay the others


class SlotStarter(Protocol):
    """Who starts what schedules are for."""

    async def prepare(self) -> None:
        """Called before each look at the store."""
        ...

    async def before(self, row: ScheduleRow, target: Target) -> LastSlotWork | None:
        """What the last slot started, if it is still known."""
        ...

    async def fire(self, row: ScheduleRow, target: Target, decision: FireSlot) -> bool:
        """Starts it and moves the schedule on, in one commit; False when another scheduler did."""
        ...

    async def skip(self, row: ScheduleRow, decision: SkipSlot) -> bool:
        """Moves the schedule on and records why nothing was started; False when another scheduler did."""
        ...


class Scheduler:
    """Fires what is due. Any number of them may run; each slot fires once."""

    def __init__(self, store: Store, starter: SlotStarter) -> None:
        self._store = store
        self._starter = starter
        self._now = 0
        self._stuck: dict[str, int] = {}  # schedules that could not be fired, and the slots they are stuck at
        self._topics: frozenset[str] = frozenset()  # what held slots wait for

    async def run(self) -> None:
        topics: frozenset[str] = frozenset()
        while True:
            with self._store.signals.listen("schedules", *topics) as listener:
                while True:
                    pause = await self._look()
                    if self._topics != topics:
                        topics = self._topics  # what ended before we listened is seen by looking again
                        break
                    await listener.wait(pause)

    async def _look(self) -> float:
        """Fires what is due; gives how long it can be left alone."""
        try:
            await self._starter.prepare()
            while await self.fire_due():
                pass
            due = await self._store.next_schedule(self._now)
        except StoreError as problem:
            log.warning("cannot read schedules, trying again: %s", problem)
            return STUCK_RETRY_S
        pause = MAX_IDLE_S if due is None else min(max((due - self._now) / 1000, 0.001), MAX_IDLE_S)
        return min(pause, STUCK_RETRY_S) if self._stuck else pause

    async def fire_due(self) -> int:
        """Fires every schedule that is due now; gives how many slots this scheduler fired or passed."""
        moved = 0
        held: set[str] = set()
        stuck: dict[str, int] = {}
        last: ScheduleRow | None = None
        while True:
            due = await self._store.due_schedules(last, PAGE)
            self._now = due.now
            for row in due.rows:
                moved += await self._one(row, due.now, held, stuck)
            if len(due.rows) < PAGE:
                break
            last = due.rows[-1]
        self._stuck, self._topics = stuck, frozenset(held)
        return moved

    async def _one(self, row: ScheduleRow, now: int, held: set[str], stuck: dict[str, int]) -> int:
        assert row.next is not None
        try:
            return await self._burst(row, now, held, stuck)
        except asyncio.CancelledError:
            raise
        except Exception:
            # For want of the flow perhaps: another process may have it.
            stuck[row.id] = row.next
            if self._stuck.get(row.id) != row.next:  # told once
                log.exception("schedule %s could not fire its slot %d", row.id, row.next)
            return 0

    async def _burst(self, row: ScheduleRow, now: int, held: set[str], stuck: dict[str, int]) -> int:
        """The due slots of one schedule, for as long as nobody else moves it."""
        spec, target = decode_spec(row), decode_target(row)
        assert row.next is not None
        oldest = oldest_catch_up_slot(spec, row.next, now)
        for moved in range(MAX_SLOTS_IN_A_ROW):
            if row.next is None or row.next > now:
                return moved
            match decide(spec, row, now, await self._before(spec, row, target), oldest):
                case HoldSlot(behind):
                    # A run says when it ends; a plain job is looked at again after a while.
                    if target.flow is not None:
                        held.add(f"run:{behind}")
                    else:
                        stuck[row.id] = row.next
                    return moved
                case SkipSlot(next_) as decision:
                    mine = await self._starter.skip(row, decision)
                    row = msgspec.structs.replace(row, next=next_)
                case FireSlot(move) as decision:
                    mine = await self._starter.fire(row, target, decision)
                    row = msgspec.structs.replace(row, next=move.next, last=move.slot, fired=row.fired + 1)
            if not mine:
                return moved
        return MAX_SLOTS_IN_A_ROW

    async def _before(self, spec: ScheduleSpec, row: ScheduleRow, target: Target) -> LastSlotWork | None:
        if spec.overlap == "allow" or row.last is None:
            return None
        return await self._starter.before(row, target)
