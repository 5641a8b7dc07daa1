"""Plain jobs: no run, one outcome, their events on the queue's stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from ..commit.committer import Intent
from ..commit.runtime import Runtime
from ..core.clock import iso
from ..core.errors import ChildFailed, UnknownQueue
from ..core.event_bodies import EventBodies
from ..core.events import Body
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
    Outcome,
    Parent,
    PublishedOptions,
    Released,
    RetryAt,
    Started,
    Unit,
)
from ..worker.attempt import SHUTDOWN
from ..worker.outcomes import Failure, Limited, Spoken, Stopped, Success, Waiting, packed
from .dead_letters import letter

# A job nobody here knows may be known to a newer worker: it is tried again for a while before it is called dead.
UNKNOWN = RetryPolicy(attempts=5, backoff=Backoff("fixed", 5000, jitter=False))


class JobOptions(msgspec.Struct, omit_defaults=True, rename="camel"):
    """What a plain job carries besides its payload."""

    correlation_id: str | None = None
    retry: RetryPolicy | None = None
    redriven: int = 0
    waits: bool = False  # for children
    parent: Parent | None = None
    keep_completed: KeepJobs | None = None
    keep_failed: KeepJobs | None = None


_options = msgspec.json.Decoder(JobOptions)
encode_options = msgspec.json.Encoder().encode


class JobEngine:
    """Opens claims of plain jobs."""

    def __init__(
        self,
        runtime: Runtime,
    ) -> None:
        self._runtime = runtime

    async def open(self, claim: Claim) -> JobWork:
        handler = self._runtime.registry().job(claim.queue, claim.name)
        if handler is None:
            handler = unknown_handler(
                claim.name,
                claim.queue,
                UnknownQueue(
                    f"no handler here for job {claim.name!r} of queue {claim.queue!r}: add a worker file or @job for it"
                ),
            )
        work = JobWork(self._runtime, claim, handler)
        if work.waits and (failed := await self._failed_child(claim.scope)) is not None:
            work.handler = _failing(work.handler, ChildFailed(f"child {failed} failed, so {claim.job!r} was not run"))
        return work

    async def _failed_child(self, id: str) -> str | None:
        rows = await self._runtime.store.children(id)
        return next((row.key for row in rows if row.state is ChildState.FAILED), None)


def _failing(handler: Handler, problem: Exception) -> Handler:
    """The handler as far as dead letters go, but with nothing to run."""

    async def fail() -> None:
        raise problem

    return replace(handler, fn=fail, input_schema=None, output_schema=None)


def unknown_handler(name: str, queue: str, problem: Exception) -> Handler:
    """A handler that says it is not here, patiently at first."""

    async def missing() -> None:
        raise problem

    return Handler(name=name, fn=missing, queue=queue, retry=UNKNOWN)


def new_job(
    *,
    id: str,
    queue: str,
    name: str,
    payload: bytes,
    recorder: EventBodies,
    options: JobOptions,
    priority: int = 0,
    due: int = 0,
    rate_key: str | None = None,
    scope: str | None = None,
    dedupe: Dedupe | None = None,
    published: PublishedOptions | None = None,
) -> NewJob:
    """A plain job, with the events that adding it and claiming it will append."""
    stream, corr = recorder.queue(queue), options.correlation_id
    meta: dict[str, Any] = {"name": name}
    active = recorder.encode(Body("job.active", id, correlation_id=corr, meta=meta))
    shown = {**meta, "due": iso(due)} if due else meta
    added = recorder.encode(Body("job.added", id, correlation_id=corr, data=msgspec.Raw(payload), meta=shown))
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
    )


class JobWork:
    """One claim of a plain job."""

    run_id: str | None = None
    flow: str | None = None
    step: str | None = None
    n = 1
    public_url = ""

    def __init__(self, runtime: Runtime, claim: Claim, handler: Handler) -> None:
        options = _options.decode(claim.opts)
        self.claim = claim
        self.handler = handler if options.retry is None else replace(handler, retry=options.retry)
        self._keep_completed = options.keep_completed or handler.keep_completed
        self._keep_failed = options.keep_failed or handler.keep_failed
        self.recorder = runtime.bodies
        self.stream = runtime.bodies.queue(claim.queue)
        self.subject: str | None = claim.job
        self.shown_correlation = options.correlation_id
        self.correlation_id = options.correlation_id or claim.job
        self.waits = options.waits
        self._options = options
        self._clock = runtime.clock
        self._unit_id = runtime.new_unit_id

    def check_emit(self, kind: str, data: bytes) -> None:
        """A plain job may emit anything; it lands on its queue's stream and starts nothing."""

    def succeeded(self, success: Success) -> Intent:
        events = [msgspec.structs.replace(self._event(e.kind, e.data), kind=e.kind) for e in success.emitted]
        events.append(self._event("job.completed", _result(success.result), self._duration(success.spoken)))
        outcome = Completed(success.result, self._keep_completed)
        return self._intent(success.spoken, outcome, events, success, kept=success.kept)

    def failed(self, failure: Failure) -> Intent:
        now = self._clock.now_ms()
        error = msgspec.to_builtins(failure.error)
        due = None if failure.retry_in_ms is None else now + failure.retry_in_ms
        data = {**error, "willRetry": due is not None, **({"nextRetryAt": iso(due)} if due is not None else {})}
        meta = {"maxAttempts": self.handler.retry.attempts, **self._duration(failure.spoken)}
        events = [self._event("schema.error", packed(failure.schema_error))] if failure.schema_error else []
        events.append(self._event("job.failed", packed(data), meta))
        if due is not None:
            return self._intent(failure.spoken, RetryAt(due, packed(error)), events, kept=failure.kept)
        jobs = [letter(self, failure.error, now)] if self.handler.dead_letters else []
        outcome = Dead(packed(error), self._keep_failed)
        return self._intent(failure.spoken, outcome, events, jobs=jobs, kept=failure.kept)

    def limited(self, limited: Limited) -> Intent:
        until = self._clock.now_ms() + limited.hold_ms
        said = packed({"reason": limited.reason, "until": iso(until)})
        events = [self._event("job.returned", said, self._duration(limited.spoken))]
        return self._intent(limited.spoken, Released(hold_until=until), events, kept=limited.kept)

    def suspended(self, waiting: Waiting) -> Intent:  # noqa: ARG002
        raise AssertionError(f"job {self.claim.job} belongs to no run and cannot wait")

    def stopped(self, stopped: Stopped) -> Intent:
        if stopped.reason == SHUTDOWN:
            return self._intent(stopped.spoken, Released(), [])
        return self._intent(
            stopped.spoken,
            Cancelled(stopped.reason),
            [self._event("job.cancelled", packed({"reason": stopped.reason}))],
        )

    def _duration(self, spoken: Spoken) -> dict[str, Any]:
        return {"duration": spoken.ended_ms - spoken.started_ms}

    def _event(self, kind: str, data: bytes | None, meta: dict[str, Any] | None = None) -> NewEvent:
        raw = msgspec.Raw(data) if data is not None else None
        about = {"attempt": self.claim.attempt, "name": self.claim.name, **(meta or {})}
        return NewEvent(
            self.stream,
            self.recorder.encode(
                Body(kind, self.subject, correlation_id=self._options.correlation_id, data=raw, meta=about)
            ),
        )

    def _intent(
        self,
        spoken: Spoken,
        outcome: Outcome,
        events: list[NewEvent],
        success: Success | None = None,
        jobs: list[NewJob] | None = None,
        kept: PendingWrites | None = None,
    ) -> Intent:
        unit = Unit(
            self._unit_id(),
            claim=self.claim,
            outcome=outcome,
            events=[*[NewEvent(self.stream, body) for body in spoken.frames], *events] if spoken.frames else events,
            jobs=jobs or [],
            state=success.state if success else [],
            memos=kept.memos if kept is not None else [],
            progress=spoken.progress,
            parent=self._options.parent.id if self._options.parent is not None else None,
            children_settled=not self.waits,
            logs=spoken.logs,
        )
        return Intent(lambda _v, _r: unit, patient=True)


class QuietWork(JobWork):
    """A claim of one of the engine's own jobs: nobody is told unless it fails."""

    def succeeded(self, success: Success) -> Intent:
        return self._intent(success.spoken, Completed(), [], success)


def _result(result: bytes) -> bytes:
    return b'{"result":' + result + b"}"
