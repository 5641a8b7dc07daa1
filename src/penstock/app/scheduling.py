"""Keeping schedules and firing them: each firing is one unit that also moves the schedule on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from ..core.clock import Clock, moment_ms
from ..core.durations import Duration, to_ms
from ..core.errors import ConfigError
from ..core.ids import check_id
from ..core.payload import pack
from ..flows.commands import Commands
from ..flows.registry import Flow
from ..jobs.committer import Committer, Intent
from ..jobs.engine import JobOptions
from ..jobs.scheduler import Scheduler, ScheduleSpec, Target, check_spec, next_slot
from ..ports.store import ScheduleRow, Store
from ..ports.unit import Committed, ScheduleMove, Unit
from .enqueuing import Enqueuing


class Scheduling:
    """Schedules of this application."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        commands: Commands,
        enqueuing: Enqueuing,
        clock: Clock,
        unit_id: Callable[[], str],
        flow: Callable[[str], Flow],
    ) -> None:
        self._store = store
        self._committer = committer
        self._commands = commands
        self._enqueuing = enqueuing
        self._clock = clock
        self._unit_id = unit_id
        self._flow = flow
        self.scheduler = Scheduler(store, clock, self.fire)

    async def upsert(
        self,
        id: str,
        *,
        flow: str | None,
        queue: str | None,
        name: str | None,
        payload: Any,
        every: Duration | None,
        cron: str | None,
        tz: str,
        at: datetime | None,
        priority: int,
    ) -> ScheduleRow:
        if (flow is None) == (queue is None):
            raise ConfigError("a schedule starts a flow or adds a job: give either flow=… or queue=…")
        pack(payload, "the payload of a schedule")
        every_ms = to_ms(every) if every is not None else None
        spec = check_spec(ScheduleSpec(every_ms, cron, tz, moment_ms(at) if at is not None else None))
        target = Target(flow, queue, name, payload, priority)
        next_ms = next_slot(spec, self._clock.now_ms())
        encode = msgspec.json.encode
        row = ScheduleRow(check_id(id, "schedule id"), encode(spec), encode(target), next_ms)
        await self._store.upsert_schedule(row)
        return row

    async def fire(self, row: ScheduleRow, target: Target, move: ScheduleMove) -> bool:
        """Starts what a schedule is for and moves it on, in one commit; False when another scheduler did."""
        id = f"{row.id}.{move.slot}"
        if target.flow is not None:
            data = pack(target.payload)
            return await self._commands.start(
                self._flow(target.flow), id, data, priority=target.priority, cause=f"schedule-{row.id}", move=move
            )
        assert target.queue is not None
        job = self._enqueuing.job(
            target.queue, target.payload, JobOptions(), name=target.name, id=id, priority=target.priority
        )
        unit = Unit(self._unit_id(), jobs=[job], schedule=move)
        return isinstance(await self._committer.submit(Intent(lambda _v, _r: unit)), Committed)
