"""The flow engine: opens claims of steps and turns the outcomes of attempts into units."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from ..commit.command_sink import CommandSink, DirectSink
from ..commit.runtime import Runtime
from ..core.errors import UnknownStep, UnreadableRecord
from ..core.events import Event
from ..core.ids import step_job_id
from ..core.near_match import is_probably
from ..core.payload import DECODE_ERRORS, pack, unpack
from ..core.stored import read_stored
from ..handlers.handler import Handler
from ..handlers.trigger_table import TriggerTable
from ..handlers.trigger_table import decode as decode_table
from ..jobs.engine import missing_handler
from ..ports.runner import Runner
from ..ports.store import JobRow, StateRow
from ..ports.unit import DELIVERIES, READ_PARTS, ROUTE_STEP, Claim, NewJob
from ..worker.child_runs import RunStart
from ..worker.engines import PreflightProblem, RecordSummary, RunOutcome
from ..worker.outcomes import Launcher
from ..worker.unreadable import mark_options
from . import run_record as records
from .conditions import CodeConditions
from .decide import Decider
from .record_check import check_record, check_step_job
from .reducer import RunView, apply_flow, finish_view, reduce_flow
from .routing import PartsWork, RouteWork, StepRouteWork
from .run_index import start_keys
from .run_record import RunRecord
from .step_work import OtherVersionWork, StepWork
from .units import UnitBuilder, decode_options, guess_options, read_options
from .unreadable_run import UnreadableRunWork
from .version_policy import VersionPolicy

if TYPE_CHECKING:
    from .run_commands import FlowCommands

MAX_STEPS = 100_000
MAX_CHECKED_KINDS = 1000
log = logging.getLogger("penstock.flows")


class FlowEngine:
    """Decides with the code of this process, or with the pinned trigger tables of runs started by older code."""

    kind = "flow"

    def __init__(self, runtime: Runtime, launcher: Launcher | None = None) -> None:
        self.runtime = runtime
        self.launcher = launcher
        self._registry = runtime.registry
        self._tables: dict[str, TriggerTable] = {}
        self._checked_kinds: set[str] = set()
        self.version_policy = VersionPolicy()
        self.bodies = runtime.bodies
        self.clock = runtime.clock
        self.new_unit_id = runtime.new_unit_id
        self.public_url = runtime.public_url

    async def open(self, claim: Claim) -> StepWork:
        assert claim.run is not None
        assert claim.record is not None
        try:
            record = records.decode(claim.record, claim.run)
            flow = self._registry().flows.get(record.flow)
            table = flow.table if flow is not None and record.table is None else await self.table(record)
        except UnreadableRecord as problem:
            return UnreadableRunWork(self, claim, problem)
        if claim.queue == DELIVERIES:
            works = {READ_PARTS: PartsWork, ROUTE_STEP: StepRouteWork}
            work = works.get(claim.name, RouteWork)
            return work(self, claim, record, table, flow)
        try:
            options = decode_options(claim.opts)
        except DECODE_ERRORS as problem:
            claim, options = mark_options(claim, problem), guess_options(claim)
        definition = flow.steps.get(options.step) if flow is not None else None
        handler = None
        if flow is not None and flow.definition.version != record.version:
            handler = self.version_policy.replacement_handler(claim, record, flow)
        if handler is not None:
            return OtherVersionWork(self, claim, record, table, flow, handler, options.n, options.trace)
        if definition is not None:
            handler = _with_attempts(definition.handler, options.attempts)
        else:
            handler = missing_handler(
                options.step,
                claim.queue,
                UnknownStep(
                    f"this worker has no step {options.step!r} of flow {record.flow!r}; add its file, or run a worker "
                    "that has it"
                ),
            )
        return StepWork(self, claim, record, table, flow, handler, options.n, options.trace)

    async def table(self, record: RunRecord) -> TriggerTable:
        """Return the trigger table of a run: the pinned one, or that of the loaded code."""
        flow = self._registry().flows.get(record.flow)
        if record.table is None or (flow is not None and flow.table.fingerprint == record.table):
            return flow.table if flow is not None else TriggerTable(record.flow, "", {})
        known = self._tables.get(record.table)
        if known is None:
            row = await self.runtime.store.state(table_key(record.table))
            known = _read_table(row) if row is not None else TriggerTable(record.flow, "", {})
            self._tables[record.table] = known
        return known

    def check_event(self, flow: str, kind: str, data: bytes) -> None:
        """Raise if an event does not match the schema its flow declares for that kind."""
        known = self._registry().flows.get(flow)
        check = known.event_validators.get(kind) if known is not None else None
        if check is not None:
            check(unpack(data))

    def hint_unheard(self, kind: str, emitter: str = "") -> None:
        """Log a warning, once for each kind, if nothing listens to a kind that looks like a misspelling of another.

        Events without a listener are normal: they are a run's record."""
        known = self._registry().heard_kinds
        if kind in known or kind in self._checked_kinds or len(self._checked_kinds) >= MAX_CHECKED_KINDS:
            return
        self._checked_kinds.add(kind)
        if (near := is_probably(kind, known)) is not None:
            by = f" by {emitter}" if emitter else ""
            log.warning("%r was emitted%s, and nothing here listens to it; did you mean %r?", kind, by, near)

    @cached_property
    def commands(self) -> FlowCommands:
        """Commands that write straight to the store."""
        from .run_commands import FlowCommands  # it builds on this module

        return FlowCommands(self, DirectSink(self.runtime.committer))

    def view(self, events: Sequence[Event]) -> RunView:
        """Fold the events of a run."""
        view = reduce_flow(events)
        finish_view(view)
        return view

    view_type = RunView

    def apply_event(self, view: RunView, event: Event) -> None:
        """Apply one more event to a view."""
        apply_flow(view, event)

    def finish_view(self, view: RunView) -> None:
        """Add the status that people see, counts, and the first wait."""
        finish_view(view)

    def result(self, record: bytes) -> bytes | None:
        """Return the result of a completed run as JSON; None if it is too large to keep."""
        hint = "replay the run: `penstock runs replay RUN`"
        return read_stored(lambda data: records.decode(data).result(), record, "the result of the run", hint)

    def outcome(self, record: bytes) -> RunOutcome:
        """Return how a closed run ended, for the run that called it."""
        known = records.decode(record)
        if known.status == records.COMPLETED:
            return RunOutcome(known.result())
        first = known.failures[0] if known.failures else None
        error = first.error if first is not None else known.cancel_reason or ""
        return RunOutcome(None, error, first.code if first is not None else None)

    async def start(self, start: RunStart, sink: CommandSink) -> bool:
        """Start a run, for another run, for a job or from outside."""
        from .run_commands import FlowCommands  # it builds on this module

        commands = self.commands if isinstance(sink, DirectSink) else FlowCommands(self, sink)
        return await commands.start(
            self._registry().flow(start.flow),
            start.run,
            pack(start.input, f"the input of flow {start.flow!r}"),
            correlation_id=start.correlation_id,
            priority=start.priority,
            due=start.due,
            tags=start.tags,
            cause=start.parent or "start",
            parent=start.parent,
            link=start.link,
        )

    def job_ids(self, run: str, record: bytes) -> list[str]:
        """Return the ids of the jobs of every step instance that was started."""
        steps = records.decode(record, run).list_counts()
        return [step_job_id(run, step, n) for step, counts in steps for n in range(1, counts.started + 1)]

    async def check(self, claim: Claim, runner: Runner) -> list[PreflightProblem]:
        """Return why the loaded code cannot continue a step: nothing if it agrees with everything recorded."""
        from .compatibility import PreflightChecker  # it builds on this module

        return await PreflightChecker(self, runner).check(claim)

    def instance(self, job: JobRow) -> tuple[str, int]:
        """Return the step of a job and which instance of it the job is."""
        options = read_options(job)
        return options.step, options.n

    def read_record(self, record: bytes) -> RecordSummary:
        """Return what lists show of a run, and the state key of its pinned trigger table."""
        known = records.decode(record)
        keys = (table_key(known.table),) if known.table is not None else ()
        status = known.display_status
        return RecordSummary(known.paused, keys, known.flow, status, known.closed, known.open, known.parent)

    def index_keys(self, run: str, record: bytes) -> tuple[str, ...]:
        """Return the keys that a run is found by."""
        return start_keys(run, records.decode(record, run))

    def check_record(self, record: bytes) -> None:
        """Raise if this engine cannot have written a run record."""
        check_record(record)

    def restore_job(self, run: str, record: bytes, job: NewJob) -> NewJob:
        """Return the job of an exported step with the `step.started` event that its claim appends."""
        known, options = records.decode(record, run), decode_options(job.opts)
        check_step_job(run, known, job, options)
        builder = self.unit_builder(run, known, TriggerTable(known.flow, "", {}))
        return builder.job(
            job.id, job.name, job.queue, job.payload, options, known, "import",
            priority=job.priority, due=job.due, scope=job.scope,
        )  # fmt: skip

    def explain(self, record: bytes) -> list[str]:
        """Return a sentence for each join that still waits for events."""
        known = records.decode(record)
        flow = self._registry().flows.get(known.flow)
        sentences = []
        for step, received in known.pending_joins.items():
            kinds = flow.steps[step].kinds if flow is not None and step in flow.steps else ()
            missing = ", ".join(kind for kind in kinds if kind not in received) or "more events"
            sentences.append(f"step {step!r} has received {', '.join(received)} and is waiting for {missing}")
        return sentences

    def decider(self, run: str, record: RunRecord, table: TriggerTable, *, keeps_all: bool = False) -> Decider:
        flow = self._registry().flows.get(record.flow)
        conditions = CodeConditions(flow, run, record.correlation_id)
        return Decider(run, record, table, conditions, self.clock.now_ms(), MAX_STEPS, keeps_all=keeps_all)

    def unit_builder(self, run: str, record: RunRecord, table: TriggerTable) -> UnitBuilder:
        return UnitBuilder(run, table, self._registry().flows.get(record.flow), self.bodies, self.clock.now_ms())


def _with_attempts(handler: Handler, attempts: int | None) -> Handler:
    """Return the handler with the number of attempts that a job has of its own."""
    if attempts is None:
        return handler
    return replace(handler, retry=msgspec.structs.replace(handler.retry, attempts=attempts))


def table_key(fingerprint: str) -> str:
    return f"table/{fingerprint}"


def _read_table(row: StateRow) -> TriggerTable:
    hint = "start a worker with the code of that version, or cancel the run"
    return read_stored(decode_table, row.value, f"the trigger table {row.key!r} of the run", hint)
