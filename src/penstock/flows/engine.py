"""The flow engine: opens claims of steps and turns the outcomes of attempts into units."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec

from ..commit.command_sink import CommandSink, DirectSink
from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..context.state_events import build_state_events
from ..core.clock import to_iso
from ..core.errors import UndeclaredEvent, UnknownStep, UnreadableRecord
from ..core.events import Event, EventBody
from ..core.ids import step_job_id
from ..core.near_match import is_probably
from ..core.payload import DECODE_ERRORS, pack, unpack
from ..core.stored import read_stored
from ..durable.child_runs import has_call
from ..handlers.handler import Handler
from ..handlers.registry import Flow
from ..handlers.trigger_table import TriggerTable
from ..handlers.trigger_table import decode as decode_table
from ..jobs.dead_letters import build_dead_letter
from ..jobs.engine import missing_handler
from ..ports.runner import Runner
from ..ports.store import JobRow, StateRow
from ..ports.unit import (
    DELIVERIES,
    Cancelled,
    Claim,
    Completed,
    Conflict,
    Dead,
    NewEvent,
    NewJob,
    Outcome,
    Receipt,
    Released,
    RetryAt,
    StateWrite,
    Suspended,
    Unit,
)
from ..worker.channel import RELEASED, TIMEOUT
from ..worker.child_runs import RunStart
from ..worker.engines import PreflightProblem, RecordSummary, RunOutcome
from ..worker.outcomes import (
    AttemptOutput,
    Failure,
    Interruption,
    JobReturn,
    Launcher,
    Success,
    WaitSuspension,
    pack_record,
)
from ..worker.unreadable import mark_options
from . import run_record as records
from .conditions import CodeConditions
from .decide import Decider, Decision, Emission, EndedStep
from .record_check import check_record, check_step_job
from .reducer import RunView, apply_flow, finish_view, reduce_flow
from .run_index import start_keys
from .run_record import RunRecord
from .units import UnitBuilder, decode_options, guess_options, read_options
from .version_policy import OTHER_VERSION, VersionPolicy

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
            from .unreadable_run import UnreadableRunWork  # it builds on this module

            return UnreadableRunWork(self, claim, problem)
        if claim.queue == DELIVERIES:
            from .routing import RouteWork  # it builds on this module

            return RouteWork(self, claim, record, table, flow)
        try:
            options = decode_options(claim.opts)
        except DECODE_ERRORS as problem:
            claim, options = mark_options(claim, problem), guess_options(claim)
        definition = flow.steps.get(options.step) if flow is not None else None
        handler = None
        if flow is not None and flow.definition.version != record.version:
            handler = self.version_policy.replacement_handler(claim, record, flow)
        if handler is not None:
            return OtherVersionWork(self, claim, record, table, flow, handler, options.n)
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
        return StepWork(self, claim, record, table, flow, handler, options.n)

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
        steps = records.decode(record, run).steps
        return [step_job_id(run, step, n) for step, counts in steps.items() for n in range(1, counts.started + 1)]

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

    def decider(self, run: str, record: RunRecord, table: TriggerTable) -> Decider:
        flow = self._registry().flows.get(record.flow)
        conditions = CodeConditions(flow, run, record.correlation_id)
        return Decider(run, record, table, conditions, self.clock.now_ms(), MAX_STEPS)

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


class StepWork:
    """One claim of a step."""

    family = "step"

    def __init__(
        self,
        engine: FlowEngine,
        claim: Claim,
        record: RunRecord,
        table: TriggerTable,
        flow: Flow | None,
        handler: Handler,
        n: int,
    ) -> None:
        assert claim.run is not None
        self._engine = engine
        self._table = table
        self._flow = flow
        self._decoded: RunRecord | None = record
        self.claim = claim
        self.handler = handler
        self._run = claim.run
        self._step = claim.name
        self.run_id: str | None = claim.run
        self.subject: str | None = None
        self.shown_correlation = record.event_correlation(claim.run)
        self.bodies = engine.bodies
        self.stream = engine.bodies.flow(claim.run)
        self.flow: str | None = record.flow
        self.step: str | None = claim.name
        self.n = n
        self.correlation_id = record.correlation_id
        self.public_url = engine.public_url
        self.launcher = engine.launcher
        self.parent = record.parent
        self._run_version = record.version
        self._shown_status = record.display_status

    def check_emit(self, kind: str, data: bytes) -> None:
        if self._flow is None:
            return
        definition = self._flow.steps.get(self._step)
        if definition is not None and definition.emits is not None and kind not in definition.emits:
            raise UndeclaredEvent(
                f"step {self._step!r} emitted {kind!r}, but declares emits={list(definition.emits)}; add {kind!r} to "
                "that list"
            )
        self._engine.check_event(self._flow.name, kind, data)
        self._engine.hint_unheard(kind, f"step {self._step!r}")

    def on_success(self, success: Success) -> CommitRequest:
        emitted = [Emission(e.kind, e.data, e.correlation_id) for e in success.emitted]

        def decide(decider: Decider) -> Decision:
            ended = self._ended_step(success.output)
            return decider.on_completed(ended, success.result, emitted, success.timeout_step)

        return self._request(success.output, decide, Completed(success.result), success)

    def on_failure(self, failure: Failure) -> CommitRequest:
        error, now = msgspec.to_builtins(failure.error), self._engine.clock.now_ms()
        ended, attempts = self._ended_step(failure.output, failure.is_counted), self.handler.retry.attempts
        if failure.retry_in_ms is not None:
            due = now + failure.retry_in_ms
            outcome = RetryAt(due, pack_record(error))
            backoff = self.handler.retry.backoff
            retry = partial(Decider.on_retry, ended=ended, error=error, max_attempts=attempts, due=due, backoff=backoff)
            return self._request(failure.output, retry, outcome, failure)
        jobs = [build_dead_letter(self, failure.error, now, ended.attempt)] if self.handler.dead_letters else []
        dead = Dead(pack_record(error), gives_attempt_back=not failure.is_counted)
        return self._request(failure.output, lambda d: d.on_failed(ended, error, attempts), dead, failure, jobs)

    def on_suspension(self, suspension: WaitSuspension) -> CommitRequest:
        emitted = [Emission(e.kind, e.data, e.correlation_id) for e in suspension.emitted]
        ended = self._ended_step(suspension.output)
        suspended = Suspended(suspension.due)
        called = has_call(suspension.writes.waits)
        return self._request(suspension.output, lambda d: d.on_suspended(ended, emitted, called), suspended, suspension)

    def on_resumed(self) -> CommitRequest | None:
        if self._shown_status != records.WAITING:
            return None
        return self._record_request(lambda decider: decider.on_resumed(self._step, self.n))

    def on_call(self) -> CommitRequest | None:
        return self._record_request(lambda decider: decider.on_call())

    def _record_request(self, decide: Callable[[Decider], Decision | None]) -> CommitRequest:
        """Change the record while the handler runs."""

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = records.decode(data, self._run) if data is not None else None
            if record is None or record.closed:
                return Conflict(version, data)
            decision = decide(self._engine.decider(self._run, record, self._table))
            if decision is None:
                return Conflict(version, data)
            builder = self._engine.unit_builder(self._run, record, self._table)
            return Unit(self._engine.new_unit_id(), claim=self.claim, run=builder.run_write(decision, version))

        return CommitRequest(build, run=self._run, version=self.claim.version, record=self.claim.record)

    def on_interruption(self, interruption: Interruption) -> CommitRequest:
        def build(_version: int, data: bytes | None) -> Unit:
            is_closed = data is None or records.decode(data, self._run).closed
            is_released = interruption.reason in RELEASED
            if is_closed and not is_released:
                outcome: Outcome = Cancelled(interruption.reason)
            else:
                outcome = Released(gives_attempt_back=not interruption.is_counted)
            bodies = interruption.output.live_events if is_released and not is_closed else []
            events = [NewEvent(self.stream, body) for body in bodies]
            if is_released and not is_closed and not interruption.is_counted:
                events.append(self._build_returned({"reason": interruption.reason}, is_counted=False))
            return Unit(self._engine.new_unit_id(), claim=self.claim, outcome=outcome, events=events)

        return self._commit_request(build)

    def on_return(self, returned: JobReturn) -> CommitRequest:
        until, writes = self._engine.clock.now_ms() + returned.delay_ms, returned.writes
        outcome = Released(hold_until=until) if returned.holds_queue else Released(until)
        events = [NewEvent(self.stream, body) for body in returned.output.live_events]
        events += [*writes.events, self._build_returned({"reason": returned.reason, "until": to_iso(until)})]

        def build(_version: int, data: bytes | None) -> Unit:
            if data is None or records.decode(data, self._run).closed:
                return Unit(self._engine.new_unit_id(), claim=self.claim, outcome=Cancelled("the run is closed"))
            return Unit(
                self._engine.new_unit_id(),
                claim=self.claim,
                outcome=outcome,
                events=events,
                jobs=writes.jobs,
                memos=writes.memos,
                waits=writes.waits,
                progress=returned.output.progress,
            )

        return self._commit_request(build)

    def _build_returned(self, data: dict[str, Any], *, is_counted: bool = True) -> NewEvent:
        return self._build_event("step.returned", data, is_counted=is_counted)

    def _build_event(self, kind: str, data: dict[str, Any], *, is_counted: bool = True) -> NewEvent:
        meta = {"attempt": self.claim.attempt - (not is_counted), **({"n": self.n} if self.n > 1 else {})}
        raw = msgspec.Raw(pack_record(data))
        body = EventBody(kind, step=self._step, correlation_id=self.shown_correlation, data=raw, meta=meta)
        return NewEvent(self.stream, self.bodies.encode(body))

    def _ended_step(self, output: AttemptOutput, is_counted: bool = True) -> EndedStep:
        claim, attempt = self.claim, self.claim.attempt - (not is_counted)
        return EndedStep(self._step, self.n, claim.job, attempt, claim.payload, output.duration_ms)

    def _request(
        self,
        output: AttemptOutput,
        decide: Callable[[Decider], Decision | None],
        outcome: Outcome,
        ending: Success | Failure | WaitSuspension,
        jobs: list[NewJob] | None = None,
    ) -> CommitRequest:
        live = [NewEvent(self.stream, body) for body in output.live_events]
        if isinstance(ending, Failure) and ending.schema_error is not None:
            live.append(self._build_schema_error(ending.schema_error))
        if isinstance(ending, Failure) and ending.timed_out:
            live.append(self._build_event("step.cancelled", {"reason": TIMEOUT}))
        state = [] if isinstance(ending, Failure) else ending.state
        if state:
            live += self.build_state_events(state)
        writes = ending.writes

        def build(version: int, data: bytes | None) -> Unit:
            record = self._record(data)
            if record is None or record.closed:
                # The run was cancelled meanwhile: end the job without touching the run.
                return Unit(self._engine.new_unit_id(), claim=self.claim, outcome=Cancelled("the run is closed"))
            builder = self._engine.unit_builder(self._run, record, self._table)
            decision = decide(self._engine.decider(self._run, record, self._table))
            decided = builder.events(decision) if decision is not None else []
            # Emitted events come before the wait the handler suspends on, and after the waits it has passed.
            ordered = [*decided, *writes.events] if isinstance(ending, WaitSuspension) else [*writes.events, *decided]
            return Unit(
                self._engine.new_unit_id(),
                claim=self.claim,
                outcome=outcome,
                run=builder.run_write(decision, version) if decision is not None else None,
                events=[*live, *ordered],
                jobs=[
                    *(builder.jobs(decision, version=version) if decision is not None else ()),
                    *writes.jobs,
                    *(jobs or ()),
                ],
                memos=writes.memos,
                waits=writes.waits,
                state=state,
                progress=output.progress,
            )

        return self._commit_request(build)

    def build_state_events(self, writes: Sequence[StateWrite]) -> list[NewEvent]:
        """Build the events of state changes of the run."""
        return build_state_events(
            self.bodies, self.stream, self._run, writes, self._step, self.n, self.shown_correlation, self.claim.attempt
        )

    def _record(self, data: bytes | None) -> RunRecord | None:
        """Return a record that the decision may change: the one decoded for the claim at first, then a new copy."""
        if data is None:
            return None
        decoded, self._decoded = self._decoded, None
        if decoded is not None and data is self.claim.record:
            return decoded
        return records.decode(data, self._run)

    def _commit_request(self, build: Callable[[int, bytes | None], Unit]) -> CommitRequest:
        claim = self.claim
        return CommitRequest(build, run=self._run, version=claim.version, record=claim.record, outlasts_outage=True)

    def _build_schema_error(self, error: dict[str, Any]) -> NewEvent:
        meta = {"attempt": self.claim.attempt}
        raw = msgspec.Raw(pack_record(error))
        body = EventBody("schema.error", step=self._step, correlation_id=self.shown_correlation, data=raw, meta=meta)
        return NewEvent(self.stream, self.bodies.encode(body))


class OtherVersionWork(StepWork):
    """One claim of a step of another version: it fails, or is released for a worker that has that version."""

    def on_interruption(self, interruption: Interruption) -> CommitRequest:
        if interruption.reason != OTHER_VERSION:
            return super().on_interruption(interruption)
        due = self._engine.clock.now_ms() + self._engine.version_policy.release_delay_ms(self.claim.job)
        data = {"reason": interruption.reason, "version": self._run_version, "until": to_iso(due)}
        returned = self._build_returned(data, is_counted=False)
        outcome = Released(due, gives_attempt_back=True)

        def build(_version: int, data: bytes | None) -> Unit:
            if data is None or records.decode(data, self._run).closed:
                return Unit(self._engine.new_unit_id(), claim=self.claim, outcome=Cancelled("the run is closed"))
            return Unit(self._engine.new_unit_id(), claim=self.claim, outcome=outcome, events=[returned])

        return self._commit_request(build)
