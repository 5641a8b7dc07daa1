"""The work of one claim of a step: turns what an attempt did into units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from ..commit.committer import CommitRequest
from ..context.state_events import build_state_events
from ..core.clock import to_iso
from ..core.errors import UndeclaredEvent
from ..core.events import EventBody
from ..durable.child_runs import has_call
from ..handlers.handler import Handler
from ..handlers.registry import Flow
from ..handlers.trigger_table import TriggerTable
from ..jobs.dead_letters import build_dead_letter
from ..ports.unit import (
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
from ..telemetry.tracing import AttemptSpan
from ..worker.channel import RELEASED, TIMEOUT
from ..worker.outcomes import (
    AttemptOutput,
    EmittedEvent,
    Failure,
    Interruption,
    JobReturn,
    Success,
    WaitSuspension,
    pack_record,
)
from . import run_record as records
from .decide import Decider, Decision, Emission, EndedStep
from .run_record import RunRecord
from .version_policy import OTHER_VERSION

if TYPE_CHECKING:
    from .engine import FlowEngine


class StepWork:
    """One claim of a step."""

    family = "step"
    span: AttemptSpan | None = None
    routed: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        engine: FlowEngine,
        claim: Claim,
        record: RunRecord,
        table: TriggerTable,
        flow: Flow | None,
        handler: Handler,
        n: int,
        trace: str | None = None,
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
        self.trace = trace if trace is not None else record.trace
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
        emitted = self._emissions(success.emitted)

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
        emitted = self._emissions(suspension.emitted)
        ended = self._ended_step(suspension.output)
        suspended = Suspended(suspension.due)
        called = has_call(suspension.writes.waits)
        return self._request(suspension.output, lambda d: d.on_suspended(ended, emitted, called), suspended, suspension)

    def _emissions(self, emitted: Sequence[EmittedEvent]) -> list[Emission]:
        trace = self.trace if self.span is not None else None
        return [Emission(one.kind, one.data, one.correlation_id, one.tags, trace) for one in emitted]

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
            run = builder.run_write(decision, version)
            return Unit(self._engine.new_unit_id(), claim=self.claim, run=run, state=decision.parts)

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
            builder.trace = self.trace
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
                state=[*state, *decision.parts] if decision is not None and decision.parts else state,
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
