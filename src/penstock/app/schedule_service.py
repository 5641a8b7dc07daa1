"""Storing schedules and firing them: each slot is one unit that also moves the schedule on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.clock import to_iso
from ..core.errors import PenstockError, StoreError, UnknownRun, UnknownSchedule, UnreadableRecord
from ..core.events import EventBody
from ..core.ids import check_schedule_id, route_id, uuid7
from ..core.payload import pack, unpack
from ..flows.run_commands import FlowCommands
from ..handlers.registry import Registry
from ..jobs.engine import JobOptions
from ..ports.store import PublishedSchedule, ScheduleRow
from ..ports.unit import DAG_QUEUE, Committed, JobState, NewEvent, Unit
from ..schedules.scheduler import Scheduler
from ..schedules.spec import (
    CODE_ORIGIN,
    BadSchedule,
    FireSlot,
    HoldSlot,
    LastSlotWork,
    ScheduleSpec,
    SkipSlot,
    Target,
    decide,
    decode_spec,
    decode_target,
    renew_schedule,
    resume_schedule,
)
from ..telemetry.instrumentation import ScheduleSlot
from .enqueuer import JobEnqueuer

if TYPE_CHECKING:
    from ..dags.engine import DagEngine

log = logging.getLogger("penstock.scheduler")
_OPEN = (JobState.WAITING, JobState.DELAYED, JobState.ACTIVE, JobState.SUSPENDED, JobState.HELD)


class ScheduleService:
    """Stores the schedules of an App, keeps declared ones up to date and fires slots that are due."""

    def __init__(
        self, runtime: Runtime, commands: FlowCommands, enqueuer: JobEnqueuer, dags: Callable[[], DagEngine]
    ) -> None:
        self._dags = dags
        self._store = runtime.store
        self._committer = runtime.committer
        self._commands = commands
        self._enqueuer = enqueuer
        self._bodies = runtime.bodies
        self._clock = runtime.clock
        self._unit_id = runtime.new_unit_id
        self._produce = runtime.produce
        self._registry = runtime.registry
        self._instrumentation = runtime.instrumentation
        self._prepared: Registry | None = None
        self.scheduler = Scheduler(runtime.store, self)

    # Storing

    async def upsert(self, id: str, spec: ScheduleSpec, target: Target) -> ScheduleRow:
        """Create or change a schedule. The number of slots it has fired is kept."""
        check_schedule_id(id)
        await self._check_target(target)
        while True:
            was = await self._store.schedule(id)
            row = renew_schedule(was, id, spec, target, self._clock.now_ms())
            # Refused if it fired or changed since it was read: the decision may no longer hold.
            if row == was or await self._store.put_schedule(row, was, published=self._publish(id, spec, target)):
                if target.queue is not None:
                    await self._enqueuer.warn_if_unhandled(target.queue, target.name)
                return row

    def _publish(self, id: str, spec: ScheduleSpec, target: Target) -> PublishedSchedule:
        """Return what other programs see of a schedule, in the queue of its jobs or of its flow's first step."""
        if target.flow is not None and self._dags().find_definition(target.flow) is not None:
            queue, name = DAG_QUEUE, target.flow
        elif target.flow is not None:
            queue, name = self._registry().flow(target.flow).definition.entry.handler.queue_name, target.flow
        else:
            assert target.queue is not None
            queue, name = target.queue, target.name or id
        return PublishedSchedule(
            queue,
            name,
            spec.cron,
            spec.every_ms,
            spec.tz if spec.cron is not None else None,
            spec.start_ms,
            spec.end_ms,
            spec.limit,
            pack(target.input),
        )

    async def pause(self, id: str) -> ScheduleRow:
        return await self._change(id, lambda row: msgspec.structs.replace(row, paused=True))

    async def resume(self, id: str) -> ScheduleRow:
        return await self._change(id, lambda row: resume_schedule(row, self._clock.now_ms()) if row.paused else row)

    async def _change(self, id: str, change: Callable[[ScheduleRow], ScheduleRow]) -> ScheduleRow:
        while True:
            was = await self.get(id)
            row = change(was)
            if row == was or await self._store.put_schedule(row, was):
                return row

    async def get(self, id: str) -> ScheduleRow:
        row = await self._store.schedule(id)
        if row is None:
            raise UnknownSchedule(f"no schedule with id {id!r}; run `penstock schedules` to see the ids")
        return row

    async def _is_dag(self, name: str) -> bool:
        return name not in self._registry().flows and await self._dags().load_definition(name)

    async def _check_target(self, target: Target) -> None:
        """Raise now what would fail when a slot fires."""
        if (target.flow is None) == (target.queue is None):
            passed = "neither" if target.flow is None else "both"
            raise BadSchedule(f"a schedule requires either flow= or queue=, got {passed}")
        if target.flow is not None and target.order_key is not None:
            raise BadSchedule("order_key= only applies to queue=, not to flow=; the runs of a flow have no order")
        data = pack(target.input, "the input of a schedule")
        if target.flow is not None:
            if not await self._is_dag(target.flow):
                self._registry().flow(target.flow).definition.entry.handler.check_input(unpack(data))
        else:
            self._job(target, None)

    # Declared in code

    async def prepare(self) -> None:
        """Store the schedules that the code declares and remove those it no longer does, once per registry."""
        registry = self._registry()
        if registry is self._prepared:
            return
        for id, (spec, target) in registry.schedules.items():
            try:
                await self.upsert(id, spec, target)
            except StoreError:
                raise  # the scheduler tries again
            except PenstockError as problem:
                log.error("cannot store schedule %s declared in the code: %s", id, problem)
        for row in await self._store.schedules():
            if self._is_dropped(registry, row) and await self._store.remove_schedule(row.id, row):
                log.info("removed schedule %s, which the code no longer declares", row.id)
        self._prepared = registry

    def _is_dropped(self, registry: Registry, row: ScheduleRow) -> bool:
        """Return whether this code declared the schedule before and no longer does. Other deployments keep theirs."""
        if row.id in registry.schedules:
            return False
        try:
            spec, target = decode_spec(row), decode_target(row)
        except UnreadableRecord:
            return False
        if spec.origin != CODE_ORIGIN:
            return False
        if target.flow is not None:
            return target.flow in registry.flows
        return (target.queue or "", target.name or "*") in registry.jobs

    # Firing

    async def is_held(self, row: ScheduleRow, now: int) -> bool:
        """Return whether a due slot waits for the work of the slot before."""
        spec, target = decode_spec(row), decode_target(row)
        if row.last is None or spec.overlap == "allow":
            return False
        return isinstance(decide(spec, row, now, await self.last_work(row, target)), HoldSlot)

    async def last_work(self, row: ScheduleRow, target: Target) -> LastSlotWork | None:
        """Return what the last slot started, or None if it is no longer stored."""
        id = f"{row.id}.{row.last}"
        if target.flow is not None:
            run = await self._store.run(id)
            return LastSlotWork(id, not run.closed, run.updated if run.closed else None) if run is not None else None
        job = await self._store.job(id)
        if job is None:
            route = await self._store.job(route_id(id))  # a worker is about to add it
            return LastSlotWork(id, True, None, False) if route is not None and route.state in _OPEN else None
        return LastSlotWork(id, job.state in _OPEN, job.finished, is_cancellable=job.state != JobState.ACTIVE)

    async def fire(self, row: ScheduleRow, target: Target, decision: FireSlot) -> bool:
        """Start the work of a slot and move the schedule on, in one commit. Return False if another scheduler did."""
        with self._produce("schedule", row.id):
            return await self._fire(row, target, decision)

    async def _fire(self, row: ScheduleRow, target: Target, decision: FireSlot) -> bool:
        move, replaces = decision.move, decision.replaces
        id = f"{row.id}.{move.slot}"
        if target.flow is None:
            unit = Unit(self._unit_id(), jobs=[self._job(target, id)], schedule=move)
            if replaces is not None:
                # If a worker took that job meanwhile, the unit is refused.
                unit.removes, unit.events = [replaces], [self._build_replaced(target, replaces)]
            return isinstance(await self._committer.submit(CommitRequest(lambda _v, _r: unit)), Committed)
        is_dag = await self._is_dag(target.flow)
        commands = self._dags().commands if is_dag else self._commands
        if replaces is not None:
            # A separate commit before the slot fires: after a crash in between, the slot is still due and the next
            # scheduler finds the run ended. The run of the slot that fires now is never the one cancelled.
            try:
                await commands.cancel(replaces, f"replaced by the slot {to_iso(move.slot)} of schedule {row.id}")
            except UnknownRun:
                pass  # removed since
        if is_dag:
            priority = target.priority or 0
            return await self._dags().commands.start(target.flow, id, pack(target.input), priority=priority, move=move)
        flow = self._registry().flow(target.flow)
        return await self._commands.start(
            flow, id, pack(target.input), priority=target.priority or 0, cause=f"schedule-{row.id}", move=move
        )

    async def skip(self, row: ScheduleRow, decision: SkipSlot) -> bool:
        """Move the schedule on and record why the slot was skipped. Return False if another scheduler did."""
        assert row.next is not None
        data = {
            "slot": to_iso(row.next),
            "next": to_iso(decision.next) if decision.next is not None else None,
            "reason": decision.reason,
        }
        event = self._event(self._bodies.global_stream, "schedule.skipped", row.id, data)
        log.info("schedule %s skipped its slot %s: %s", row.id, data["slot"], decision.reason)
        moved = msgspec.structs.replace(row, next=decision.next)
        has_moved = await self._store.put_schedule(moved, row, Unit(self._unit_id(), events=[event]))
        if has_moved and self._instrumentation is not None:
            self._instrumentation.report(ScheduleSlot(row.id, row.next, decision.next, is_skipped=True))
        return has_moved

    async def run_now(self, id: str) -> str:
        """Start the work of a schedule now, besides its slots, and return the id of the run or the job."""
        row = await self.get(id)
        target = decode_target(row)
        new = f"{id}.{uuid7(self._clock.now_ms())}"
        if target.flow is not None and await self._is_dag(target.flow):
            await self._dags().commands.start(target.flow, new, pack(target.input), priority=target.priority or 0)
        elif target.flow is not None:
            flow = self._registry().flow(target.flow)
            await self._commands.start(
                flow, new, pack(target.input), priority=target.priority or 0, cause=f"schedule-{id}"
            )
        else:
            unit = Unit(self._unit_id(), jobs=[self._job(target, new)])
            await self._committer.submit(CommitRequest(lambda _v, _r: unit))
        return new

    def _job(self, target: Target, id: str | None) -> Any:
        assert target.queue is not None
        options = JobOptions(order_key=target.order_key)
        return self._enqueuer.build(
            target.queue, target.input, options, name=target.name, key=id, priority=target.priority
        )

    def _build_replaced(self, target: Target, job: str) -> NewEvent:
        assert target.queue is not None
        stream = self._bodies.queue(target.queue)
        return self._event(stream, "job.cancelled", job, {"reason": "replaced by the next slot of its schedule"})

    def _event(self, stream: str, kind: str, subject: str, data: Any) -> NewEvent:
        return NewEvent(stream, self._bodies.encode(EventBody(kind, subject, data=msgspec.Raw(pack(data)))))
