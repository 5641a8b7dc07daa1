"""Schedules: the next slot is computed here, purely; that it fires once is the store's compare-and-set."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from ..core.clock import Clock
from ..core.errors import ConfigError, StoreError
from ..ports.store import ScheduleRow, Store
from ..ports.unit import ScheduleMove

log = logging.getLogger("penstock.scheduler")
MAX_IDLE = 5.0  # seconds
STUCK = 1.0  # seconds before a slot that could not be fired is tried again


class ScheduleSpec(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """When: every so many milliseconds, by a cron expression in a time zone, or once at a moment."""

    every_ms: int | None = None
    cron: str | None = None
    tz: str = "UTC"
    at_ms: int | None = None


class Target(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What: a flow to start or a queue to add a job to."""

    flow: str | None = None
    queue: str | None = None
    name: str | None = None
    payload: Any = None
    priority: int = 0


Fire = Callable[[ScheduleRow, Target, ScheduleMove], Awaitable[bool]]


def check_spec(spec: ScheduleSpec) -> ScheduleSpec:
    """The spec itself, or a ConfigError saying what is wrong with it."""
    if sum(x is not None for x in (spec.every_ms, spec.cron, spec.at_ms)) != 1:
        raise ConfigError("a schedule needs exactly one of every='5m', cron='0 9 * * *' or at=<datetime>")
    if spec.every_ms is not None and spec.every_ms < 1:
        raise ConfigError("a schedule cannot run every 0 ms: give every='1s' or more")
    if spec.cron is not None:
        try:
            CronSim(spec.cron, datetime(2024, 1, 1, tzinfo=ZoneInfo(spec.tz)))
        except CronSimError as problem:
            raise ConfigError(
                f"{spec.cron!r} is not a cron expression: {problem}; one looks like '0 9 * * 1-5'"
            ) from None
        except (ZoneInfoNotFoundError, ValueError):
            raise ConfigError(f"{spec.tz!r} is not a time zone: one looks like 'Europe/Berlin'") from None
    return spec


def next_slot(spec: ScheduleSpec, after_ms: int, last: int | None = None) -> int | None:
    """The first slot after a moment; None when there is no more."""
    if spec.at_ms is not None:
        return spec.at_ms if last is None else None
    if spec.every_ms is not None:
        # Slots are counted from the epoch, so that every scheduler counts the same ones.
        return (after_ms // spec.every_ms + 1) * spec.every_ms
    assert spec.cron is not None
    start = datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(ZoneInfo(spec.tz))
    try:
        return round(next(CronSim(spec.cron, start)).timestamp() * 1000)
    except StopIteration:
        return None


class Scheduler:
    """Fires what is due. Any number of them may run; each slot fires once."""

    def __init__(self, store: Store, clock: Clock, fire: Fire) -> None:
        self._store = store
        self._clock = clock
        self._fire = fire

    async def run(self) -> None:
        with self._store.signals.listen("schedules") as listener:
            while True:
                pause = MAX_IDLE
                try:
                    looked = self._clock.now_ms()
                    while await self.fire_due():
                        pass
                    due = await self._store.next_schedule()
                    if due is not None and due <= looked:
                        pause = STUCK  # this process cannot fire it, for want of the flow perhaps; another may
                    elif due is not None:
                        pause = min(max((due - self._clock.now_ms()) / 1000, 0.001), MAX_IDLE)
                except StoreError as problem:
                    log.warning("cannot read schedules, trying again: %s", problem)
                    pause = STUCK
                await listener.wait(pause)

    async def fire_due(self) -> int:
        """Fires every schedule that is due now; gives how many this scheduler fired."""
        fired = 0
        now = self._clock.now_ms()
        for row in await self._store.due_schedules(now):
            assert row.next is not None
            spec = msgspec.json.decode(row.spec, type=ScheduleSpec)
            target = msgspec.json.decode(row.target, type=Target)
            # Slots missed while nothing ran are made up for by one firing.
            move = ScheduleMove(row.id, row.next, next_slot(spec, max(now, row.next), row.next))
            try:
                fired += await self._fire(row, target, move)
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("schedule %s could not fire its slot %d", row.id, row.next)
        return fired
