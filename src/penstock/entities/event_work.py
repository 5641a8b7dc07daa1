"""One claim of an entity's event: how each result of its attempt is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from ..commit.committer import CommitRequest
from ..context.state_events import build_state_events
from ..core.clock import to_iso
from ..core.errors import UnreadableRecord
from ..core.event_tags import add_tags
from ..core.events import EventBody
from ..core.payload import NULL
from ..flows.units import public_kind
from ..handlers.handler import Handler
from ..jobs.dead_letters import build_dead_letter
from ..jobs.engine import missing_handler
from ..ports.unit import (
    Cancelled,
    Claim,
    Completed,
    Dead,
    KeepJobs,
    NewEvent,
    NewJob,
    Outcome,
    Released,
    RetryAt,
    RunParent,
    StateWrite,
    Suspended,
    Unit,
)
from ..telemetry.tracing import AttemptSpan
from ..worker.channel import RELEASED
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
from . import record as records
from .decide import Decision, Emitted, Handled, Rules, on_dead, on_handled, on_split, take_spilled
from .record import EntityRecord, Mail, TakenMail

if TYPE_CHECKING:
    from .engine import EntityEngine

# An entity has no end: its jobs are removed as they end. Its stream has what happened.
KEEP_NONE = KeepJobs(0)
ENDED_EVENT = Cancelled("the event has ended before")
NO_RULES = Rules()


class EventWork:
    """One claim of an event."""

    family = "entity"
    parent: RunParent | None = None
    span: AttemptSpan | None = None
    routed: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        engine: EntityEngine,
        claim: Claim,
        record: EntityRecord,
        mail: TakenMail,
        handler: Handler,
        loaded: Sequence[Mail] = (),
        rules: Rules = NO_RULES,
    ) -> None:
        assert claim.run is not None
        self._engine = engine
        self._id = claim.run
        self._builder = engine.unit_builder(claim.run)
        self.record = record
        self._decoded: EntityRecord | None = record
        self.mail = mail
        self._loaded = loaded
        self._rules = rules
        self.claim = claim
        self.handler = handler
        self.handled: Handled | None = None  # the handler sets it
        self.bodies = engine.bodies
        self.stream = self._builder.stream
        self.subject: str | None = None
        self.shown_correlation: str | None = None
        self.run_id: str | None = claim.run
        self.flow: str | None = record.type
        self.step: str | None = mail.event or None
        self.n = mail.n
        self.trace = mail.trace
        self.correlation_id = claim.run
        self.public_url = engine.public_url
        self.launcher = engine.launcher

    def check_emit(self, kind: str, data: bytes) -> None:
        """Accept any event: other runs may wait for it."""

    # Results

    def on_success(self, success: Success) -> CommitRequest:
        assert self.handled is not None
        handled, meta = self.handled, self._meta(success.output)
        shows_data = self.bodies.records_state

        def decide(record: EntityRecord) -> Decision:
            return on_handled(record, self.mail, handled, self._rules, meta, shows_data=shows_data)

        # Emitted events come before the transition: a refused or rejected event emits nothing.
        is_applied = handled.kind != "refused" and handled.reason is None
        emitted = self._emitted(success.emitted) if is_applied else []
        return self._request(success.output, decide, Completed(NULL, KEEP_NONE), success, emitted, is_applied)

    def on_failure(self, failure: Failure) -> CommitRequest:
        error, now = msgspec.to_builtins(failure.error), self._engine.clock.now_ms()
        attempt = self.claim.attempt - (not failure.is_counted)
        meta = self._meta(failure.output) | {"attempt": attempt, "maxAttempts": self.handler.retry.attempts}
        data = {"event": self.mail.event, **error}
        if failure.retry_in_ms is not None:
            due = now + failure.retry_in_ms
            event = self._builder.event(Emitted("retrying", {**data, "nextRetryAt": to_iso(due)}, meta))
            return self._bare_request(failure.output, RetryAt(due, pack_record(error)), [event], failure.writes.memos)
        if self.mail.count > 1:
            return self._split(failure)
        jobs = [build_dead_letter(self, failure.error, now, attempt)] if self.handler.dead_letters else []
        dead = Dead(pack_record(error), KEEP_NONE, gives_attempt_back=not failure.is_counted)

        def decide(record: EntityRecord) -> Decision:
            return on_dead(record, data, self._rules, meta)

        return self._request(failure.output, decide, dead, failure, [], False, jobs)

    def _split(self, failure: Failure) -> CommitRequest:
        """Handle events one by one that failed together for good: each has all its attempts, and none fails for
        another."""
        meta = self._meta(failure.output)

        def decide(record: EntityRecord) -> Decision:
            return on_split(record, self.mail, failure.error.error, meta)

        return self._request(failure.output, decide, Completed(NULL, KEEP_NONE), failure, [], False)

    def on_suspension(self, suspension: WaitSuspension) -> CommitRequest:
        """Suspend the event: those that wait behind it keep their order."""
        live = [NewEvent(self.stream, body) for body in suspension.output.live_events]
        writes = suspension.writes
        unit = Unit(
            self._engine.new_unit_id(),
            claim=self.claim,
            outcome=Suspended(suspension.due),
            events=[*live, *self._emitted(suspension.emitted), *self._state_events(suspension.state), *writes.events],
            jobs=writes.jobs,
            memos=writes.memos,
            waits=writes.waits,
            state=suspension.state,
            progress=suspension.output.progress,
        )
        return CommitRequest(lambda _v, _r: unit, outlasts_outage=True)

    def on_resumed(self) -> CommitRequest | None:
        return None

    def on_call(self) -> CommitRequest | None:
        return None

    def on_interruption(self, interruption: Interruption) -> CommitRequest:
        is_released = interruption.reason in RELEASED
        outcome: Outcome = Released(gives_attempt_back=not interruption.is_counted)
        events: list[NewEvent] = []
        if is_released and not interruption.is_counted:
            meta = self._meta(interruption.output) | {"attempt": self.claim.attempt - 1}
            events = [self._builder.event(Emitted("returned", {"reason": interruption.reason}, meta))]
        return self._bare_request(interruption.output, outcome, events)

    def on_return(self, returned: JobReturn) -> CommitRequest:
        until = self._engine.clock.now_ms() + returned.delay_ms
        outcome = Released(hold_until=until) if returned.holds_queue else Released(until)
        data = {"reason": returned.reason, "until": to_iso(until)}
        event = self._builder.event(Emitted("returned", data, self._meta(returned.output)))
        return self._bare_request(returned.output, outcome, [event], returned.writes.memos)

    # Units

    def _request(
        self,
        output: AttemptOutput,
        decide: Callable[[EntityRecord], Decision],
        outcome: Outcome,
        ending: Success | Failure,
        emitted: list[NewEvent],
        is_applied: bool,
        more_jobs: Sequence[NewJob] = (),
    ) -> CommitRequest:
        live = [NewEvent(self.stream, body) for body in output.live_events]
        state = ending.state if isinstance(ending, Success) and is_applied else []
        launched = ending.writes.jobs if is_applied else []
        before = [*live, *self._state_events(state), *ending.writes.events, *emitted]

        def build(version: int, data: bytes | None) -> Unit:
            record = self._record(data)
            if record is None or record.current != self.mail.n:
                return Unit(self._engine.new_unit_id(), claim=self.claim, outcome=ENDED_EVENT)
            unspilled = take_spilled(record, self.mail.n, self._loaded)
            decision = decide(record)
            decision.unspilled = unspilled
            return Unit(
                self._engine.new_unit_id(),
                claim=self.claim,
                outcome=outcome,
                run=self._builder.run_write(decision.record, version),
                events=[*before, *self._builder.events(decision)],
                jobs=[*more_jobs, *self._builder.jobs(decision), *launched],
                memos=ending.writes.memos,
                waits=ending.writes.waits,
                state=[*state, *self._builder.state(decision)],
                progress=output.progress,
            )

        claim = self.claim
        return CommitRequest(build, run=self._id, version=claim.version, record=claim.record, outlasts_outage=True)

    def _record(self, data: bytes | None) -> EntityRecord | None:
        """Return a record that the decision may change: the one decoded for the claim at first, then a new copy."""
        if data is None:
            return None
        decoded, self._decoded = self._decoded, None
        return decoded if decoded is not None and data is self.claim.record else records.decode(data, self._id)

    def _bare_request(
        self, output: AttemptOutput, outcome: Outcome, events: list[NewEvent], memos: Sequence[Any] = ()
    ) -> CommitRequest:
        """End the attempt without a change of the entity."""
        live = [NewEvent(self.stream, body) for body in output.live_events]
        unit = Unit(
            self._engine.new_unit_id(),
            claim=self.claim,
            outcome=outcome,
            events=[*live, *events],
            memos=list(memos),
            progress=output.progress,
        )
        return CommitRequest(lambda _v, _r: unit, outlasts_outage=True)

    # Events

    def build_state_events(self, writes: Sequence[StateWrite]) -> list[NewEvent]:
        """Build the events of state changes."""
        return build_state_events(
            self.bodies, self.stream, self._id, writes, self.step, self.n, self.shown_correlation, self.claim.attempt
        )

    def _state_events(self, writes: Sequence[StateWrite]) -> list[NewEvent]:
        return self.build_state_events(writes) if writes else []

    def _emitted(self, emitted: Sequence[EmittedEvent]) -> list[NewEvent]:
        meta = {"causationId": self.claim.job, "attempt": self.claim.attempt, "n": self.n}
        found = []
        for one in emitted:
            corr = one.correlation_id if one.correlation_id != self._id else None
            raw = msgspec.Raw(one.data)
            body = EventBody(one.kind, correlation_id=corr, data=raw, meta=add_tags(meta, one.tags))
            redacted, original = self.bodies.encode_emitted(body)
            found.append(NewEvent(self.stream, redacted, public_kind(one.kind), original))
        return found

    def _meta(self, output: AttemptOutput) -> dict[str, Any]:
        return {"n": self.n, "attempt": self.claim.attempt, "duration": output.duration_ms}


class UnreadableEntityWork(EventWork):
    """One claim of an entity whose record cannot be read. It fails once, and the record stays as it is."""

    def __init__(self, engine: EntityEngine, claim: Claim, problem: UnreadableRecord) -> None:
        handler = missing_handler(claim.name, claim.queue, problem)
        record = EntityRecord(claim.name, claim.run or "", "", claim.queue, 0)
        super().__init__(engine, claim, record, TakenMail(0, ""), handler)
        self._decoded = None  # the record that it was given is not the stored one

    def on_failure(self, failure: Failure) -> CommitRequest:
        error = msgspec.to_builtins(failure.error)
        event = self._builder.event(Emitted("failed", error, self._meta(failure.output)))
        return self._bare_request(failure.output, Dead(pack_record({**error, "undecided": True})), [event])
