"""One claim of a node: how each result of its attempt is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from ..commit.committer import CommitRequest
from ..context.state_events import build_state_events
from ..core.clock import to_iso
from ..core.errors import UnknownDag, UnreadableRecord
from ..core.event_tags import add_tags
from ..core.events import EventBody
from ..durable.child_runs import has_call
from ..flows.run_record import WAITING
from ..handlers.handler import Handler
from ..handlers.nodes import read_outcome
from ..jobs.engine import missing_handler
from ..ports.unit import (
    DAG,
    Cancelled,
    Claim,
    Completed,
    Conflict,
    Dead,
    NewEvent,
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
from .decide import Decider, Decision, EndedNode
from .definition import Dag, Node
from .plan import Plan
from .run_record import DagRecord

if TYPE_CHECKING:
    from .engine import DagEngine

CLOSED_RUN = Cancelled("the run is closed")
ENDED_NODE = Cancelled("the node has ended before")


class NodeWork:
    """One claim of a node."""

    family = "node"
    span: AttemptSpan | None = None
    routed: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        engine: DagEngine,
        claim: Claim,
        record: DagRecord,
        plan: Plan,
        node: int,
        handler: Handler,
        n: int,
        trace: str | None = None,
    ) -> None:
        assert claim.run is not None
        self._engine = engine
        self._plan = plan
        self._node = node
        self._decoded: DagRecord | None = record
        self._shown_status = record.display_status
        self._run = claim.run
        self.claim = claim
        self.handler = handler
        self.run_id: str | None = claim.run
        self.subject: str | None = None
        self.shown_correlation = record.event_correlation(claim.run)
        self.bodies = engine.bodies
        self.stream = engine.bodies.run(DAG, claim.run)
        self.flow: str | None = record.dag
        self.step: str | None = claim.name
        self.n = n
        self.correlation_id = record.correlation_id
        self.public_url = engine.public_url
        self.launcher = engine.launcher
        self.parent = record.parent
        self.trace = trace if trace is not None else record.trace

    def check_emit(self, kind: str, data: bytes) -> None:
        """Accept any event: it starts no node, and other runs may wait for it."""

    # Results

    def on_success(self, success: Success) -> CommitRequest:
        outcome = read_outcome(success.result)
        ended, emitted = self._ended(success.output), self._emitted(success.emitted)

        def decide(decider: Decider) -> Decision | None:
            if outcome.skipped is not None:
                return decider.on_skipped(ended, outcome.skipped)
            return decider.on_completed(ended, outcome.data, outcome.chosen, events=emitted)

        return self._request(success.output, decide, Completed(outcome.data), success)

    def on_failure(self, failure: Failure) -> CommitRequest:
        error, now = msgspec.to_builtins(failure.error), self._engine.clock.now_ms()
        ended, attempts = self._ended(failure.output, failure.is_counted), self.handler.retry.attempts
        if failure.retry_in_ms is not None:
            due = now + failure.retry_in_ms
            backoff = self.handler.retry.backoff
            retry = partial(Decider.on_retry, ended=ended, error=error, max_attempts=attempts, due=due, backoff=backoff)
            return self._request(failure.output, retry, RetryAt(due, pack_record(error)), failure)
        dead = Dead(pack_record(error), gives_attempt_back=not failure.is_counted)
        return self._request(failure.output, lambda d: d.on_failed(ended, error, attempts), dead, failure)

    def on_suspension(self, suspension: WaitSuspension) -> CommitRequest:
        ended, called = self._ended(suspension.output), has_call(suspension.writes.waits)
        emitted = self._emitted(suspension.emitted)

        def decide(decider: Decider) -> Decision | None:
            decision = decider.on_suspended(ended, called)
            if decision is not None:
                decision.events = [*emitted, *decision.events]
            return decision

        return self._request(suspension.output, decide, Suspended(suspension.due), suspension)

    def on_resumed(self) -> CommitRequest | None:
        if self._shown_status != WAITING:
            return None
        return self._record_request(lambda decider: decider.on_resumed(self._node))

    def on_call(self) -> CommitRequest | None:
        return self._record_request(lambda decider: decider.on_call())

    def on_interruption(self, interruption: Interruption) -> CommitRequest:
        is_released = interruption.reason in RELEASED

        def build(_version: int, data: bytes | None) -> Unit:
            is_closed = data is None or records.decode(data, self._run).closed
            if is_closed and not is_released:
                outcome: Outcome = Cancelled(interruption.reason)
            else:
                outcome = Released(gives_attempt_back=not interruption.is_counted)
            events: list[NewEvent] = []
            if is_released and not is_closed:
                events = [NewEvent(self.stream, body) for body in interruption.output.live_events]
                if not interruption.is_counted:
                    events.append(self._event("node.returned", {"reason": interruption.reason}, is_counted=False))
            return Unit(self._engine.new_unit_id(), claim=self.claim, outcome=outcome, events=events)

        return self._commit_request(build)

    def on_return(self, returned: JobReturn) -> CommitRequest:
        until, writes = self._engine.clock.now_ms() + returned.delay_ms, returned.writes
        is_counted = returned.is_counted
        outcome = (
            Released(hold_until=until) if returned.holds_queue else Released(until, gives_attempt_back=not is_counted)
        )
        events = [NewEvent(self.stream, body) for body in returned.output.live_events]
        events += [
            *writes.events,
            self._event("node.returned", {"reason": returned.reason, "until": to_iso(until)}, is_counted=is_counted),
        ]

        def build(_version: int, data: bytes | None) -> Unit:
            if data is None or records.decode(data, self._run).closed:
                return Unit(self._engine.new_unit_id(), claim=self.claim, outcome=CLOSED_RUN)
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

    # Units

    def _request(
        self,
        output: AttemptOutput,
        decide: Callable[[Decider], Decision | None],
        outcome: Outcome,
        ending: Success | Failure | WaitSuspension,
    ) -> CommitRequest:
        live = [NewEvent(self.stream, body) for body in output.live_events]
        if isinstance(ending, Failure) and ending.schema_error is not None:
            live.append(self._event("schema.error", ending.schema_error))
        if isinstance(ending, Failure) and ending.timed_out:
            live.append(self._event("node.cancelled", {"reason": TIMEOUT}))
        state = [] if isinstance(ending, Failure) else ending.state
        if state:
            live += self.build_state_events(state)
        writes = ending.writes

        def build(version: int, data: bytes | None) -> Unit:
            record = self._record(data)
            if record is None or record.closed:
                # The run was cancelled meanwhile: end the job without touching the run.
                return Unit(self._engine.new_unit_id(), claim=self.claim, outcome=CLOSED_RUN)
            decision = decide(self._engine.decider(self._run, record, self._plan))
            if decision is None:
                return Unit(self._engine.new_unit_id(), claim=self.claim, outcome=ENDED_NODE)
            builder = self._engine.unit_builder(self._run, self._plan)
            builder.trace = self.trace
            decided = builder.events(decision)
            # Emitted events come before the wait the executor suspends on, and after the waits it has passed.
            ordered = [*decided, *writes.events] if isinstance(ending, WaitSuspension) else [*writes.events, *decided]
            return Unit(
                self._engine.new_unit_id(),
                claim=self.claim,
                outcome=outcome,
                run=builder.run_write(decision, version),
                events=[*live, *ordered],
                jobs=[*builder.jobs(decision, version=version), *writes.jobs],
                memos=writes.memos,
                waits=writes.waits,
                state=[*state, *builder.state(decision)],
                progress=output.progress,
                statuses=builder.statuses(decision),
            )

        return self._commit_request(build)

    def _record_request(self, decide: Callable[[Decider], Decision | None]) -> CommitRequest:
        """Change the record while the executor runs."""

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = records.decode(data, self._run) if data is not None else None
            if record is None or record.closed:
                return Conflict(version, data)
            decision = decide(self._engine.decider(self._run, record, self._plan))
            if decision is None:
                return Conflict(version, data)
            builder = self._engine.unit_builder(self._run, self._plan)
            return Unit(self._engine.new_unit_id(), claim=self.claim, run=builder.run_write(decision, version))

        return CommitRequest(build, run=self._run, version=self.claim.version, record=self.claim.record)

    def _commit_request(self, build: Callable[[int, bytes | None], Unit]) -> CommitRequest:
        claim = self.claim
        return CommitRequest(build, run=self._run, version=claim.version, record=claim.record, outlasts_outage=True)

    def _record(self, data: bytes | None) -> DagRecord | None:
        """Return a record that the decision may change: the one decoded for the claim at first, then a new copy."""
        if data is None:
            return None
        decoded, self._decoded = self._decoded, None
        if decoded is not None and data is self.claim.record:
            return decoded
        return records.decode(data, self._run)

    # Events

    def build_state_events(self, writes: Sequence[StateWrite]) -> list[NewEvent]:
        """Build the events of state changes of the run."""
        return build_state_events(
            self.bodies, self.stream, self._run, writes, self.step, self.n, self.shown_correlation, self.claim.attempt
        )

    def _ended(self, output: AttemptOutput, is_counted: bool = True) -> EndedNode:
        return EndedNode(self._node, self.claim.job, self.claim.attempt - (not is_counted), output.duration_ms)

    def _emitted(self, emitted: Sequence[EmittedEvent]) -> list[EventBody]:
        meta: dict[str, Any] = {"causationId": self.claim.job, "attempt": self.claim.attempt}
        if self.span is not None:
            meta["traceparent"] = self.trace
        bodies = []
        for one in emitted:
            corr = one.correlation_id if one.correlation_id != self._run else None
            raw = msgspec.Raw(one.data)
            shown, tagged = corr or self.shown_correlation, add_tags(meta, one.tags)
            bodies.append(EventBody(one.kind, None, None, self.step, None, shown, raw, tagged))
        return bodies

    def _event(self, kind: str, data: dict[str, Any], *, is_counted: bool = True) -> NewEvent:
        meta = {"attempt": self.claim.attempt - (not is_counted), **({"n": self.n} if self.n > 1 else {})}
        raw = msgspec.Raw(pack_record(data))
        body = EventBody(kind, step=self.step, correlation_id=self.shown_correlation, data=raw, meta=meta)
        return NewEvent(self.stream, self.bodies.encode(body))


class UnreadableRunWork(NodeWork):
    """One claim of a node whose run record or dag cannot be read, or is gone. It fails once. The run keeps its record,
    so that people can see and restore it."""

    def __init__(self, engine: DagEngine, claim: Claim, problem: UnreadableRecord | UnknownDag) -> None:
        assert claim.run is not None
        handler = missing_handler(claim.name, claim.queue, problem)
        plan = Plan(Dag("", (Node(claim.name, ""),)), 0)
        super().__init__(engine, claim, DagRecord("", 0, claim.run, 0), plan, 0, handler, 1)
        self.flow = None

    def on_failure(self, failure: Failure) -> CommitRequest:
        error = msgspec.to_builtins(failure.error)
        event = self._event("node.failed", {**error, "willRetry": False})
        dead = Dead(pack_record({**error, "undecided": True}))
        unit = Unit(self._engine.new_unit_id(), claim=self.claim, outcome=dead, events=[event])
        return CommitRequest(lambda _v, _r: unit, outlasts_outage=True)

    def on_interruption(self, interruption: Interruption) -> CommitRequest:
        outcome = Released(gives_attempt_back=not interruption.is_counted)
        unit = Unit(self._engine.new_unit_id(), claim=self.claim, outcome=outcome)
        return CommitRequest(lambda _v, _r: unit, outlasts_outage=True)
