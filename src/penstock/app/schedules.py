"""Keeping schedules and firing them: each firing is one unit that also moves the schedule on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from ..commit.committer import Intent
from ..commit.runtime import Runtime
from ..core.clock import iso
from ..core.errors import PenstockError, StoreError, UnknownRun, UnknownSchedule
from ..core.events import Body
from ..core.ids import check_schedule_id, uuid7
from ..core.payload import pack, unpack
from ..flows.commands import Commands
from ..handlers.registry import Registry
from ..jobs.engine import JobOptions
from ..ports.store import ScheduleRow
from ..ports.unit import Committed, JobState, NewEvent, Unit
from ..schedules.service import Scheduler
from ..schedules.spec import (
    CODE,
    BadSchedule,
    Before,
    FireSlot,
    HoldSlot,
    PassSlot,
    ScheduleSpec,
    Target,
    decide,
    renewed,
    resumed,
    spec_of,
    target_of,
)
from .jobs import Enqueuing

log = logging.getLogger("penstock.scheduler")
_OPEN = (JobState.WAITING, JobState.DELAYED, JobState.ACTIVE, JobState.SUSPENDED)


class Scheduling:
    """Schedules of this application."""

    def __init__(self, runtime: Runtime, commands: Commands, enqueuing: Enqueuing) -> None:
        self._store = runtime.store
        self._committer = runtime.committer
        self._commands = commands
        self._enqueuing = enqueuing
        self._bodies = runtime.bodies
        self._clock = runtime.clock
        self._unit_id = runtime.new_unit_id
        self._registry = runtime.registry
        self._prepared: Registry | None = None
        self.scheduler = Scheduler(runtime.store, self)

    # Keeping

    async def upsert(self, id: str, spec: ScheduleSpec, target: Target) -> ScheduleRow:
        """Creates a schedule or changes it; what it has fired is kept."""
        check_schedule_id(id)
        self._check_target(target)
        while True:
            was = await self._store.schedule(id)
            row = renewed(was, id, spec, target, self._clock.now_ms())
            # Refused if it fired, or someone changed it, since we looked: what was decided may no longer hold.
            if row == was or await self._store.put_schedule(row, was):
                if target.queue is not None:
                    await self._enqueuing.doubt(target.queue, target.name)
                return row

    async def pause(self, id: str) -> ScheduleRow:
        return await self._change(id, lambda row: msgspec.structs.replace(row, paused=True))

    async def resume(self, id: str) -> ScheduleRow:
        return await self._change(id, lambda row: resumed(row, self._clock.now_ms()) if row.paused else row)

    async def _change(self, id: str, change: Callable[[ScheduleRow], ScheduleRow]) -> ScheduleRow:
        while True:
            was = await self._row(id)
            row = change(was)
            if row == was or await self._store.put_schedule(row, was):
                return row

    async def _row(self, id: str) -> ScheduleRow:
        row = await self._store.schedule(id)
        if row is None:
            raise UnknownSchedule(f"there is no schedule {id!r}: `penstock schedules` lists them")
        return row

    def _check_target(self, target: Target) -> None:
        """What could not be started later is said now."""
        if (target.flow is None) == (target.queue is None):
            raise BadSchedule("a schedule starts a flow or adds a job: give either flow=… or queue=…")
        data = pack(target.payload, "the payload of a schedule")
        if target.flow is not None:
            self._registry().flow(target.flow).definition.entry.handler.check_input(unpack(data))
        else:
            self._job(target, None)

    # What the code asks for

    async def prepare(self) -> None:
        """Brings the schedules that come from code up to date, whenever the code is another."""
        registry = self._registry()
        if registry is self._prepared:
            return
        for id, (spec, target) in registry.schedules.items():
            try:
                await self.upsert(id, spec, target)
            except StoreError:
                raise  # the scheduler tries again
            except PenstockError as problem:
                log.error("schedule %s, which the code asks for, cannot be kept: %s", id, problem)
        for row in await self._store.schedules():
            if self._was_dropped(registry, row) and await self._store.remove_schedule(row.id, row):
                log.info("schedule %s is removed: the code no longer asks for it", row.id)
        self._prepared = registry

    def _was_dropped(self, registry: Registry, row: ScheduleRow) -> bool:
        """Whether it came from code, and it is this code that no longer has it: another deployment's are its own."""
        if spec_of(row).origin != CODE or row.id in registry.schedules:
            return False
        target = target_of(row)
        if target.flow is not None:
            return target.flow in registry.flows
        return (target.queue or "", target.name or "*") in registry.jobs

    # Firing

    async def is_held(self, row: ScheduleRow, now: int) -> bool:
        """Whether a due slot waits for what the last one started."""
        spec, target = spec_of(row), target_of(row)
        if row.last is None or spec.overlap == "allow":
            return False
        return isinstance(decide(spec, row, now, await self.before(row, target)), HoldSlot)

    async def before(self, row: ScheduleRow, target: Target) -> Before | None:
        id = f"{row.id}.{row.last}"
        if target.flow is not None:
            run = await self._store.run(id)
            return Before(id, not run.closed, run.updated if run.closed else None) if run is not None else None
        job = await self._store.job(id)
        if job is None:
            return None
        return Before(id, job.state in _OPEN, job.finished, cancellable=job.state != JobState.ACTIVE)

    async def fire(self, row: ScheduleRow, target: Target, decision: FireSlot) -> bool:
        """Starts what a schedule is for and moves it on, in one commit; False when another scheduler did."""
        move, replaces = decision.move, decision.replaces
        id = f"{row.id}.{move.slot}"
        if target.flow is None:
            unit = Unit(self._unit_id(), jobs=[self._job(target, id)], schedule=move)
            if replaces is not None:
                # One that a worker took meanwhile is not to be had, and the unit is refused.
                unit.removes, unit.events = [replaces], [self._dropped(target, replaces)]
            return isinstance(await self._committer.submit(Intent(lambda _v, _r: unit)), Committed)
        flow = self._registry().flow(target.flow)
        if replaces is not None:
            # A commit of its own, before the slot fires: whoever dies in between leaves a slot that is still due, and
            # a second scheduler finds the run ended. The run of the slot that fires now is never the one cancelled.
            try:
                await self._commands.cancel(replaces, f"replaced by the slot {iso(move.slot)} of schedule {row.id}")
            except UnknownRun:
                pass  # removed since
        return await self._commands.start(
            flow, id, pack(target.payload), priority=target.priority or 0, cause=f"schedule-{row.id}", move=move
        )

    async def pass_by(self, row: ScheduleRow, decision: PassSlot) -> bool:
        assert row.next is not None
        data = {
            "slot": iso(row.next),
            "next": iso(decision.next) if decision.next is not None else None,
            "reason": decision.reason,
        }
        event = self._event(self._bodies.global_stream, "schedule.skipped", row.id, data)
        log.info("schedule %s skipped its slot %s: %s", row.id, data["slot"], decision.reason)
        passed = msgspec.structs.replace(row, next=decision.next)
        return await self._store.put_schedule(passed, row, Unit(self._unit_id(), events=[event]))

    async def run_now(self, id: str) -> str:
        """Starts what a schedule is for, now and besides its slots; gives the id of the run or the job."""
        row = await self._row(id)
        target = target_of(row)
        new = f"{id}.{uuid7(self._clock.now_ms())}"
        if target.flow is not None:
            flow = self._registry().flow(target.flow)
            await self._commands.start(
                flow, new, pack(target.payload), priority=target.priority or 0, cause=f"schedule-{id}"
            )
        else:
            unit = Unit(self._unit_id(), jobs=[self._job(target, new)])
            await self._committer.submit(Intent(lambda _v, _r: unit))
        return new

    def _job(self, target: Target, id: str | None) -> Any:
        assert target.queue is not None
        return self._enqueuing.job(
            target.queue, target.payload, JobOptions(), name=target.name, id=id, priority=target.priority
        )

    def _dropped(self, target: Target, job: str) -> NewEvent:
        assert target.queue is not None
        stream = self._bodies.queue(target.queue)
        return self._event(stream, "job.cancelled", job, {"reason": "replaced by the next slot of its schedule"})

    def _event(self, stream: str, kind: str, subject: str, data: Any) -> NewEvent:
        return NewEvent(stream, self._bodies.encode(Body(kind, subject, data=msgspec.Raw(pack(data)))))
