"""The job engine: opens claims of plain jobs, which have no run and append their events to the queue's stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec

from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.clock import to_iso
from ..core.errors import ChildFailed, UnknownQueue
from ..core.event_tags import add_tags
from ..core.events import EventBodies, EventBody
from ..core.payload import DECODE_ERRORS
from ..core.retry import Backoff, RetryPolicy
from ..durable.journal import PendingWrites
from ..handlers.handler import Handler
from ..ports.store import ChildState
from ..ports.unit import (
    Cancelled,
    Claim,
    Completed,
    Dead,
    Dedupe,
    KeepJobs,
    NewEvent,
    NewJob,
    OnFailure,
    Outcome,
    Parent,
    PublishedOptions,
    Released,
    RetryAt,
    RunParent,
    Started,
    Unit,
)
from ..telemetry.tracing import AttemptSpan
from ..worker.channel import RELEASED, TIMEOUT
from ..worker.live_log import live_events
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
from .dead_letters import build_dead_letter

# A newer worker may know a job that this one does not: retry it for a while before it becomes a dead letter.
MAX_SHOWN_INPUT_BYTES = 4096  # a larger input is stored once, with the job, and not in its event
UNKNOWN_HANDLER_RETRY = RetryPolicy(attempts=5, backoff=Backoff("fixed", 5000, jitter=False))


class JobOptions(msgspec.Struct, omit_defaults=True, rename="camel"):
    """Options of a plain job, besides its input."""

    correlation_id: str | None = None
    retry: RetryPolicy | None = None
    redriven: int = 0
    has_children: bool = False
    parent: Parent | None = None
    keep_completed: KeepJobs | None = None
    keep_failed: KeepJobs | None = None
    order_key: str | None = None
    rate_key: str | None = None
    priority: int = 0
    trace: str | None = None  # the `traceparent` of what enqueued it


decode_options = msgspec.json.Decoder(JobOptions).decode
encode_options = msgspec.json.Encoder().encode


def read_options(claim: Claim) -> tuple[Claim, JobOptions | None]:
    """Return a claim and its options; without them, the claim is marked as one that cannot be decoded."""
    try:
        return claim, decode_options(claim.opts)
    except DECODE_ERRORS as problem:
        return mark_options(claim, problem), None


class JobEngine:
    """Opens claims of plain jobs."""

    kind = "job"

    def __init__(self, runtime: Runtime, launcher: Launcher | None = None) -> None:
        self._runtime = runtime
        self._launcher = launcher

    async def open(self, claim: Claim) -> JobWork:
        handler = self._runtime.registry().job(claim.queue, claim.name)
        if handler is None:
            handler = missing_handler(
                claim.name,
                claim.queue,
                UnknownQueue(
                    f"this worker has no handler for job {claim.name!r} of queue {claim.queue!r}; add a worker "
                    "file or a @job for it"
                ),
            )
        claim, options = read_options(claim)
        if options is None:
            options = await self._restore_options(claim)
        work = JobWork(self._runtime, claim, handler, options)
        work.launcher = self._launcher
        if work.has_children and (failed := await self._failed_child(claim.scope)) is not None:
            work.handler = failing_handler(
                work.handler, ChildFailed(f"{claim.job!r} was not run because its child {failed!r} failed")
            )
        return work

    async def _restore_options(self, claim: Claim) -> JobOptions:
        """Return what the store itself knows of a job's options, so that its end reaches the jobs that wait for it."""
        row = await self._runtime.store.job(claim.job)
        if row is None:
            return JobOptions()
        parent = Parent(row.parent, "", OnFailure.WAIT) if row.parent is not None else None
        return JobOptions(parent=parent, order_key=row.order_key)

    async def _failed_child(self, id: str) -> str | None:
        rows = await self._runtime.store.children(id)
        return next((row.id for row in rows if row.state is ChildState.FAILED), None)


def failing_handler(handler: Handler, problem: Exception) -> Handler:
    """Return the handler with its options, but with a function that raises the problem."""

    async def fail() -> None:
        raise problem

    return replace(handler, fn=fail, input_schema=None, output_schema=None)


def missing_handler(name: str, queue: str, problem: Exception) -> Handler:
    """Return a handler that raises the problem, with retries in case another worker has the real one."""

    async def fail() -> None:
        raise problem

    return Handler(name=name, fn=fail, queue=queue, retry=UNKNOWN_HANDLER_RETRY)


def new_job(
    *,
    id: str,
    queue: str,
    name: str,
    payload: bytes,
    bodies: EventBodies,
    options: JobOptions,
    priority: int = 0,
    due: int = 0,
    rate_key: str | None = None,
    scope: str | None = None,
    dedupe: Dedupe | None = None,
    published: PublishedOptions | None = None,
    parent: str | None = None,
) -> NewJob:
    """Build a plain job, with the events that enqueuing it and claiming it append."""
    if rate_key is not None or priority:
        options = msgspec.structs.replace(options, rate_key=rate_key, priority=priority)  # a redrive needs them
    stream, corr = bodies.queue(queue), options.correlation_id
    meta: dict[str, Any] = {"name": name}
    active = bodies.encode(EventBody("job.active", id, correlation_id=corr, meta=meta))
    added_meta = {**meta, "due": to_iso(due)} if due else meta
    if parent is not None:
        added_meta = {**added_meta, "parent": parent}
    shown = msgspec.Raw(payload) if len(payload) <= MAX_SHOWN_INPUT_BYTES else None
    if shown is None:
        added_meta = {**added_meta, "inputBytes": len(payload)}
    added = bodies.encode(EventBody("job.added", id, correlation_id=corr, data=shown, meta=added_meta))
    return NewJob(
        id,
        queue,
        name,
        payload,
        priority,
        due,
        scope=scope,
        opts=encode_options(options),
        started=Started(stream, active[:-2] + b","),
        rate_key=rate_key,
        added=NewEvent(stream, added),
        dedupe=dedupe,
        published=published,
        order_key=options.order_key,
    )


class JobWork:
    """One claim of a plain job."""

    run_id: str | None = None
    flow: str | None = None
    step: str | None = None
    n = 1
    family = "job"
    public_url = ""
    launcher: Launcher | None = None
    parent: RunParent | None = None
    span: AttemptSpan | None = None
    routed: Mapping[str, str] = MappingProxyType({})

    def __init__(self, runtime: Runtime, claim: Claim, handler: Handler, options: JobOptions | None = None) -> None:
        options = options if options is not None else decode_options(claim.opts)
        self.claim = claim
        self.handler = handler if options.retry is None else replace(handler, retry=options.retry)
        self._keep_completed = options.keep_completed or handler.keep_completed
        self._keep_failed = options.keep_failed or handler.keep_failed
        self.bodies = runtime.bodies
        self.stream = runtime.bodies.queue(claim.queue)
        self.subject: str | None = claim.job
        self.shown_correlation = options.correlation_id
        self.correlation_id = options.correlation_id or claim.job
        self.has_children = options.has_children
        self.trace = options.trace
        self._options = options
        self._clock = runtime.clock
        self._unit_id = runtime.new_unit_id

    def check_emit(self, kind: str, data: bytes) -> None:
        """Accept any event: a plain job emits to its queue's stream, which starts no step."""

    def on_success(self, success: Success) -> CommitRequest:
        events = [
            msgspec.structs.replace(self._event(e.kind, e.data, add_tags({}, e.tags)), kind=e.kind)
            for e in success.emitted
        ]
        events.append(self._event("job.completed", _result(success.result), self._duration(success.output)))
        outcome = Completed(success.result, self._keep_completed)
        return self._request(success.output, outcome, events, success, writes=success.writes)

    def on_failure(self, failure: Failure) -> CommitRequest:
        now = self._clock.now_ms()
        error = msgspec.to_builtins(failure.error)
        due = None if failure.retry_in_ms is None else now + failure.retry_in_ms
        data = {**error, "willRetry": due is not None, **({"nextRetryAt": to_iso(due)} if due is not None else {})}
        attempt = self.claim.attempt - (not failure.is_counted)
        meta = {"attempt": attempt, "maxAttempts": self.handler.retry.attempts, **self._duration(failure.output)}
        events = [self._event("schema.error", pack_record(failure.schema_error))] if failure.schema_error else []
        if failure.timed_out:
            events.append(self._event("job.cancelled", pack_record({"reason": TIMEOUT})))
        events.append(self._event("job.failed", pack_record(data), meta))
        if due is not None:
            return self._request(failure.output, RetryAt(due, pack_record(error)), events, writes=failure.writes)
        jobs = [build_dead_letter(self, failure.error, now, attempt)] if self.handler.dead_letters else []
        outcome = Dead(pack_record(error), self._keep_failed, not failure.is_counted)
        return self._request(failure.output, outcome, events, jobs=jobs, writes=failure.writes)

    def on_return(self, returned: JobReturn) -> CommitRequest:
        until = self._clock.now_ms() + returned.delay_ms
        data = pack_record({"reason": returned.reason, "until": to_iso(until)})
        events = [self._event("job.returned", data, self._duration(returned.output))]
        outcome = Released(hold_until=until) if returned.holds_queue else Released(until)
        return self._request(returned.output, outcome, events, writes=returned.writes)

    def on_suspension(self, suspension: WaitSuspension) -> CommitRequest:  # noqa: ARG002
        raise AssertionError(f"job {self.claim.job} is not part of a run and cannot wait")

    def on_resumed(self) -> CommitRequest | None:
        return None  # a plain job cannot wait

    def on_call(self) -> CommitRequest | None:
        return None

    def on_interruption(self, interruption: Interruption) -> CommitRequest:
        if interruption.reason in RELEASED:
            outcome = Released(gives_attempt_back=not interruption.is_counted)
            return self._request(interruption.output, outcome, self._build_release(interruption))
        return self._request(
            interruption.output,
            Cancelled(interruption.reason),
            [self._event("job.cancelled", pack_record({"reason": interruption.reason}))],
        )

    def _build_release(self, interruption: Interruption) -> list[NewEvent]:
        """Return the event of a claim that was released before its handler ran: `job.active` is recorded already."""
        if interruption.is_counted:
            return []
        data = pack_record({"reason": interruption.reason})
        return [self._event("job.returned", data, {"attempt": self.claim.attempt - 1})]

    def _duration(self, output: AttemptOutput) -> dict[str, Any]:
        return {"duration": output.duration_ms}

    def _event(self, kind: str, data: bytes | None, meta: dict[str, Any] | None = None) -> NewEvent:
        raw = msgspec.Raw(data) if data is not None else None
        full_meta = {"attempt": self.claim.attempt, "name": self.claim.name, **(meta or {})}
        return NewEvent(
            self.stream,
            self.bodies.encode(
                EventBody(kind, self.subject, correlation_id=self._options.correlation_id, data=raw, meta=full_meta)
            ),
        )

    def _request(
        self,
        output: AttemptOutput,
        outcome: Outcome,
        events: list[NewEvent],
        success: Success | None = None,
        jobs: list[NewJob] | None = None,
        writes: PendingWrites | None = None,
    ) -> CommitRequest:
        unit = Unit(
            self._unit_id(),
            claim=self.claim,
            outcome=outcome,
            events=[*live_events(self, output.live_events), *events] if output.live_events else events,
            jobs=[*(jobs or ()), *(writes.jobs if writes is not None else ())],
            state=success.state if success else [],
            memos=writes.memos if writes is not None else [],
            progress=output.progress,
            parent=self._options.parent.id if self._options.parent is not None else None,
            children_settled=not self.has_children,
            order_key=self._options.order_key,
            logs=output.logs,
        )
        return CommitRequest(lambda _v, _r: unit, outlasts_outage=True)


class InternalJobWork(JobWork):
    """One claim of an internal job. It appends events only if it fails."""

    def _build_release(self, _interruption: Interruption) -> list[NewEvent]:
        return []

    def on_success(self, success: Success) -> CommitRequest:
        return self._request(success.output, Completed(), [], success)


def _result(result: bytes) -> bytes:
    return b'{"result":' + result + b"}"
