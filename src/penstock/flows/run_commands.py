"""Commands on runs from outside: start, emit, pause, resume, cancel, redrive. Each commits one unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..commit.command_sink import CommandSink
from ..commit.committer import Build, CommitRequest
from ..commit.preview import is_dry_run
from ..core.errors import RunError, UnknownRun, UnreadableRecord
from ..core.ids import check_id, step_job_id
from ..core.payload import pack, show_stored
from ..core.trace_context import current_trace
from ..durable.wait_records import TRIGGER, build_cancelled_events, read_body
from ..handlers.registry import Flow
from ..handlers.subscriptions import MapOptions
from ..handlers.trigger_table import TriggerTable
from ..handlers.trigger_table import encode as encode_table
from ..jobs.dead_letters import DeadLetter
from ..ports.store import JobRow, RunRow, WaitRow
from ..ports.unit import (
    FLOW,
    Committed,
    Conflict,
    NewEvent,
    Receipt,
    Refused,
    RunParent,
    ScheduleMove,
    SettleWait,
    StateWrite,
    Unit,
)
from ..worker.child_runs import follow_jobs
from . import run_record as records
from .decide import Decider, Decision, Emission
from .engine import FlowEngine, table_key
from .run_record import COMPENSATED, FAILED, RUNNING, RunRecord
from .units import StepOptions, read_options

MAX_WAITS_READ = 1000  # of a run that is resumed or cancelled


class FlowCommands:
    """Starts runs and acts on them, through one sink."""

    def __init__(self, engine: FlowEngine, sink: CommandSink) -> None:
        self._engine = engine
        self._sink = sink
        self._store = engine.runtime.store
        self._pinned: set[str] = set()

    async def start(
        self,
        flow: Flow,
        run: str,
        input: bytes,
        *,
        correlation_id: str | None = None,
        priority: int = 0,
        due: int = 0,
        tags: dict[str, str] | None = None,
        cause: str = "start",
        parent: str | None = None,
        link: RunParent | None = None,
        move: ScheduleMove | None = None,
        options: MapOptions | None = None,
        also: Sequence[NewEvent] = (),
    ) -> bool:
        """Start a run, and append the events `also`. Return False if a run with that id exists: this makes an
        idempotency key work."""
        build = self.plan_start(
            flow, run, input, correlation_id=correlation_id, priority=priority, due=due, tags=tags, cause=cause,
            parent=parent, link=link, move=move, options=options, also=also, trace=current_trace.get(),
        )  # fmt: skip
        receipt = await self._sink.submit(CommitRequest(build, run=run))
        if isinstance(receipt, Conflict):
            if move is not None:
                # The slot's run exists from before the schedule was changed: move on to the next slot.
                unit = Unit(self._engine.new_unit_id(), schedule=move)
                await self._sink.submit(CommitRequest(lambda _v, _r: unit))
            self.check_same_flow(flow, run, receipt.record)
            return False
        if isinstance(receipt, Refused):
            return False  # another scheduler fired this slot
        if flow.definition.version is not None and not is_dry_run():
            self._pinned.add(flow.table.fingerprint)
        return True

    def plan_start(
        self,
        flow: Flow,
        run: str,
        input: bytes,
        *,
        correlation_id: str | None = None,
        priority: int = 0,
        due: int = 0,
        tags: dict[str, str] | None = None,
        cause: str = "start",
        parent: str | None = None,
        link: RunParent | None = None,
        move: ScheduleMove | None = None,
        options: MapOptions | None = None,
        also: Sequence[NewEvent] = (),
        trace: str | None = None,
    ) -> Build:
        """Return what builds the unit that starts a run. It answers with a Conflict if the run exists."""
        engine, table = self._engine, flow.table
        pin = table.fingerprint if flow.definition.version is not None else None
        unit_id = engine.new_unit_id()
        attributes = flow.definition.read_attributes(input) if flow.definition.attributes is not None else {}

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            if version:
                return Conflict(version, data)
            record = RunRecord(
                flow.name,
                correlation_id or run,
                engine.clock.now_ms(),
                priority=priority,
                table=pin,
                version=flow.definition.version,
                tags=tags or {},
                attributes=attributes,
                parent=link,
                trace=trace,
            )
            decision = engine.decider(run, record, table).on_start(input, cause, parent, options)
            builder = engine.unit_builder(run, record, table)
            pinned = [StateWrite(table_key(pin), encode_table(table))] if pin and pin not in self._pinned else []
            return Unit(
                unit_id,
                run=builder.run_write(decision, 0),
                events=[*also, *builder.events(decision)],
                jobs=builder.jobs(decision, due),
                state=decision.parts + pinned,
                schedule=move,
            )

        return build

    def check_same_flow(self, flow: Flow, run: str, data: bytes | None) -> None:
        """Raise RunError if a run that exists is of another flow."""
        if data is not None and (other := records.decode(data, run).flow) != flow.name:
            raise RunError(
                f"run {run!r} already exists and belongs to flow {other!r}, not {flow.name!r}; use another key"
            )

    async def emit(self, run: str, kind: str, data: Any, *, key: str | None = None, tags: Sequence[str] = ()) -> bool:
        """Append an event to a run from outside and start the steps that listen to it. Return False if its key was
        used before."""
        trace = current_trace.get()
        emission = Emission(kind, pack(data, f"the data of {kind}"), tags=list(tags), trace=trace)
        unit_id = self._engine.new_unit_id()
        row = await self._row(run)
        current = records.decode(row.record, run)
        self._engine.check_event(current.flow, kind, emission.data)
        table = await self._engine.table(current)

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = require_open(run, data, f"receive {kind!r}")
            decision = self._engine.decider(run, record, table).on_event(emission, f"emit-{unit_id}")
            builder = self._engine.unit_builder(run, record, table)
            builder.trace = emission.trace
            return Unit(
                unit_id,
                run=builder.run_write(decision, version),
                events=builder.events(decision),
                jobs=builder.jobs(decision),
                state=decision.parts,
                once_key=f"{run}/{key}" if key is not None else None,
            )

        receipt = await self._sink.submit(CommitRequest(build, run=run, version=row.version, record=row.record))
        return not isinstance(receipt, Refused)

    async def cancel(self, run: str, reason: str) -> bool:
        """Cancel a run and what it waits for. Return False if it has already ended."""
        while True:
            pending = [row for row in await self._pending_waits(run) if _is_readable(row)]
            waits = [SettleWait(row.id, "cancelled") for row in pending]
            events = [event for row in pending for event in self._build_cancelled(row, reason)]
            receipt = await self._decide(
                run, lambda decider, _: decider.on_cancel(reason), waits, events, may_replace_record=True
            )
            if not isinstance(receipt, Refused):
                return isinstance(receipt, Committed)
            # One of the waits was resolved or has expired meanwhile: read them again.

    async def pause(self, run: str, reason: str, *, by: str | None = None) -> bool:
        """Pause a run: no more of its steps are claimed. Return False if it is already paused or has ended."""
        return isinstance(
            await self._decide(run, lambda decider, record: None if record.paused else decider.on_pause(reason, by)),
            Committed,
        )

    async def resume(self, run: str, reason: str, *, by: str | None = None) -> bool:
        """Resume a paused run. Return False if it is not paused or, with `by`, if something else has paused it."""
        ready = await self._resolved_instances(run)

        def decide(decider: Decider, record: RunRecord) -> Decision | None:
            is_meant = record.paused and (by is None or record.paused_by == by)
            return decider.on_resume(reason, ready) if is_meant else None

        return isinstance(await self._decide(run, decide), Committed)

    async def _resolved_instances(self, run: str) -> list[str]:
        """Return the instances that the record has as waiting and that wait for nothing any more."""
        recorded = records.decode((await self._row(run)).record).waiting
        waits = await self._engine.runtime.store.waits(run, limit=MAX_WAITS_READ) if recorded else []
        if len(waits) == MAX_WAITS_READ:
            return []  # there may be more
        pending = {f"{body.step}#{body.n}" for body in map(read_body, waits)}
        return [instance for instance in recorded if instance not in pending]

    async def _decide(
        self,
        run: str,
        decide: Callable[[Decider, RunRecord], Decision | None],
        waits: Sequence[SettleWait] = (),
        events: Sequence[NewEvent] = (),
        *,
        may_replace_record: bool = False,
    ) -> Receipt:
        """Commit a decision about an open run. Return a Conflict if it has ended or there is nothing to decide.

        A record that cannot be read is replaced if the decision needs nothing of it."""
        unit_id = self._engine.new_unit_id()
        row = await self._row(run)

        def decode(data: bytes) -> RunRecord:
            try:
                return records.decode(data, run)
            except UnreadableRecord:
                if not may_replace_record:
                    raise
                return records.replace_record(row)

        try:
            table = await self._engine.table(decode(row.record))
        except UnreadableRecord:
            if not may_replace_record:
                raise
            table = TriggerTable(row.flow, "", {})

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = decode(data) if data is not None else None
            if record is None or record.closed:
                return Conflict(version, data)
            decision = decide(self._engine.decider(run, record, table), record)
            if decision is None:
                return Conflict(version, data)
            builder = self._engine.unit_builder(run, record, table)
            appended = [*events, *builder.events(decision)]
            jobs = builder.jobs(decision, version=version) + follow_jobs(run, version, record.has_called)
            return Unit(
                unit_id,
                run=builder.run_write(decision, version),
                events=appended,
                waits=list(waits),
                jobs=jobs,
                state=decision.parts,
            )

        return await self._sink.submit(CommitRequest(build, run=run, version=row.version, record=row.record))

    async def _pending_waits(self, run: str) -> list[WaitRow]:
        """Return the triggers of a run and the first of its other waits. The store cancels the rest without events."""
        found = [row for row in await self._store.waits(run, limit=MAX_WAITS_READ) if row.kind != TRIGGER]
        after: str | None = None
        while rows := await self._store.waits(run, kind=TRIGGER, after=after):
            after = rows[-1].id
            found += rows
        return found

    def _build_cancelled(self, row: WaitRow, reason: str) -> list[NewEvent]:
        body = read_body(row)
        return build_cancelled_events(row, body, self._engine.clock.now_ms(), self._engine.bodies, reason)

    async def redrive(self, letter_job: JobRow, letter: DeadLetter, payload: bytes) -> str | None:
        """Redrive a dead step and return its new job. Return None if another call took the dead letter first."""
        assert letter.run is not None
        options = msgspec.convert(letter.options, StepOptions)
        options = msgspec.structs.replace(options, step=letter.step or letter.original_job_name, n=letter.n)
        is_changed = letter.unreadable is not None or payload != pack(letter.original_data)
        return await self._requeue_step(
            letter.run,
            letter_job.id,
            letter.original_job_id,
            letter.queue,
            options,
            payload,
            letter.undecided,
            shown=payload if is_changed else None,
        )

    async def is_compensated(self, run: str) -> bool:
        """Return whether a run has ended as compensated: what its steps had done is undone."""
        row = await self._row(run)
        return records.decode(row.record, run).status == COMPENSATED

    async def start_compensated_again(self, run: str) -> str:
        """Start a compensated run again as a new run with the same input, and return the new run's first job.

        The new run's id is made from the old one's: the dead letters of one run start it once.
        """
        row = await self._row(run)
        flow = self._engine.runtime.registry().flow(row.flow)
        entry = flow.definition.entry.name
        first = await self._store.job(step_job_id(run, entry, 1))
        if first is None:
            raise RunError(f"the first job of run {run!r} was removed, so its input is lost; start a new run")
        record, new = records.decode(row.record, run), f"{run}.again"
        await self.start(flow, new, first.payload, priority=record.priority, tags=record.tags, cause=first.id)
        return step_job_id(new, entry, 1)

    async def retry_step(self, failed: JobRow) -> str | None:
        """Retry a step that finally failed and has no dead letter, or no longer has one."""
        assert failed.run is not None
        return await self._requeue_step(
            failed.run, failed.id, failed.id, failed.queue, read_options(failed), failed.payload, _is_undecided(failed)
        )

    async def _requeue_step(
        self,
        run: str,
        taken: str,
        job: str,
        queue: str,
        before: StepOptions,
        payload: bytes,
        is_undecided: bool,
        *,
        shown: bytes | None = None,
    ) -> str | None:
        """Enqueue a step's job again, with the memos of the one that failed. `step.started` has the input `shown`.

        The commit removes the job `taken`, the dead letter or the failed job, so only one caller can do this.
        """
        step = before.step
        unit_id = self._engine.new_unit_id()
        row = await self._row(run)
        table = await self._engine.table(records.decode(row.record, run))
        options = msgspec.structs.replace(before, redriven=before.redriven + 1)
        scope = job.partition(".redrive-")[0]
        new_id = f"{scope}.redrive-{options.redriven}"

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = records.decode(data, run) if data is not None else None
            if record is None or record.status not in (RUNNING, FAILED):
                state = "is gone" if record is None else f"is {record.status}"
                hint = "wait until it has ended" if record is not None and not record.closed else "start a new run"
                raise RunError(f"run {run!r} {state}, so its step {step!r} cannot be retried; {hint}")
            decision = self._engine.decider(run, record, table).on_redrive(
                step, options.n, new_id, is_undecided=is_undecided
            )
            builder = self._engine.unit_builder(run, record, table)
            job = builder.job(new_id, step, queue, payload, options, record, taken, scope=scope, shown=shown)
            return Unit(
                unit_id,
                run=builder.run_write(decision, version),
                events=builder.events(decision),
                jobs=[job],
                removes=[taken],
                state=decision.parts,
            )

        receipt = await self._sink.submit(CommitRequest(build, run=run, version=row.version, record=row.record))
        return None if isinstance(receipt, Refused) else new_id

    async def _row(self, run: str) -> RunRow:
        row = await self._store.run(check_id(run, "run id"))
        if row is None:
            raise UnknownRun(
                f"no run with id {run!r} in this store; run `penstock runs` to see the runs, and check the URL"
            )
        if row.kind != FLOW:
            raise OtherKind(
                row.kind,
                f"run {run!r} is of kind {row.kind!r}, and this works only on runs of flows; use the methods of the "
                "engine that you passed as App(engines=[…]) for this kind",
            )
        return row


class OtherKind(RunError):
    """The run is not one of a flow."""

    code = "other_kind"

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class RunClosed(RunError):
    """The run has ended and accepts no more events."""

    code = "run_closed"


def require_open(run: str, data: bytes | None, what: str) -> RunRecord:
    """Return the record of a run; raise if there is none or the run has ended."""
    record = records.decode(data, run) if data is not None else None
    if record is None:
        raise UnknownRun(f"no run with id {run!r} in this store")
    if record.closed:
        raise RunClosed(f"run {run!r} is {record.status} and cannot {what}")
    return record


def _is_undecided(failed: JobRow) -> bool:
    """Return whether a step failed without its run: the store could not hand it out."""
    error = show_stored(failed.error) if failed.error is not None else None
    return isinstance(error, dict) and error.get("undecided") is True


def _is_readable(row: WaitRow) -> bool:
    """Return whether a wait can be settled by name. One that cannot be read is cancelled with its run, by the store."""
    try:
        read_body(row)
    except UnreadableRecord:
        return False
    return True
