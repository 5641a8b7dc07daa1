"""Instrumentation: what an App does, as plain events for metrics and traces.

    def count(event):
        if isinstance(event, AttemptEnded):
            attempts.labels(event.queue, event.outcome).inc()

    app = App(listeners=[count])

A listener is called on the event loop's thread, right after the thing happened. It must not block. If it raises, the
error is logged and work goes on. Without listeners nothing is built and nothing is called.

Jobs, waits and slots are reported by the process that committed them. Units that a caller's own transaction writes
(`tx=` on the same database) are not reported: only that transaction knows whether it committed. Nor is a unit that
was applied by a commit whose reply was lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, cast

import msgspec

from ..core.errors import ConfigError
from ..ports.unit import Claim, CommitReply, Committed, Receipt, SettleWait, Unit
from .tracing import Tracer

log = logging.getLogger("penstock.telemetry")


class JobEnqueued(msgspec.Struct, frozen=True):
    """A job was added to a queue: by a command, a step, a schedule or a delivery."""

    job: str
    queue: str
    name: str
    run: str | None
    due_ms: int  # 0: at once


class JobClaimed(msgspec.Struct, frozen=True):
    """A worker has claimed a job. Its attempt may start later, when a slot is free."""

    job: str
    queue: str
    name: str
    run: str | None
    attempt: int
    worker: str


class AttemptStarted(msgspec.Struct, frozen=True):
    """A worker calls a handler."""

    job: str
    queue: str
    name: str
    run: str | None
    flow: str | None
    step: str | None
    attempt: int
    worker: str
    correlation_id: str


AttemptOutcome = Literal["completed", "failed", "retrying", "suspended", "interrupted", "rate_limited"]


class AttemptEnded(msgspec.Struct, frozen=True):
    """An attempt ended and its result is committed, unless `is_recorded` is False: its lease was lost."""

    job: str
    queue: str
    name: str
    run: str | None
    flow: str | None
    step: str | None
    attempt: int
    worker: str
    correlation_id: str
    outcome: AttemptOutcome
    duration_ms: int
    is_recorded: bool
    error: str | None = None  # the name of the exception
    code: str | None = None
    message: str | None = None  # of the exception, without secrets
    stack: str | None = None  # without the frames of Penstock
    trace: str | None = None  # the `traceparent` of the attempt, if it is traced


class BatchCommitted(msgspec.Struct, frozen=True):
    """The store answered a commit. Refused units changed nothing."""

    units: int
    refused: int
    claimed: int  # jobs claimed by the same call
    duration_s: float


class WaitChanged(msgspec.Struct, frozen=True):
    """A wait is pending, or was settled. `kind` and `run` are known for a pending wait."""

    wait: str
    state: str  # pending, resolved, expired or cancelled
    kind: str | None = None
    run: str | None = None


class ScheduleSlot(msgspec.Struct, frozen=True):
    """A schedule moved on from a slot: it fired, or was skipped."""

    schedule: str
    slot_ms: int
    next_ms: int | None  # None: the schedule has ended
    is_skipped: bool = False


class LeaseLost(msgspec.Struct, frozen=True):
    """A claim is no longer this worker's: its lease expired, or its run was cancelled. The attempt is interrupted."""

    job: str
    queue: str
    run: str | None
    attempt: int
    worker: str


InstrumentationEvent = (
    JobEnqueued | JobClaimed | AttemptStarted | AttemptEnded | BatchCommitted | WaitChanged | ScheduleSlot | LeaseLost
)
InstrumentationListener = Callable[[InstrumentationEvent], None]


class Instrumentation:
    """Calls the listeners. Code that reports holds `Instrumentation | None`; None means that there are no listeners."""

    def __init__(self, listeners: Iterable[InstrumentationListener]) -> None:
        self._listeners = tuple(listeners)
        tracers = [cast(Tracer, one) for one in self._listeners if isinstance(one, Tracer)]
        if len(tracers) > 1:
            raise ConfigError(f"an App can have one tracer, but {len(tracers)} of its listeners make spans; keep one")
        self.tracer: Tracer | None = tracers[0] if tracers else None

    @property
    def listeners(self) -> Sequence[InstrumentationListener]:
        """The listeners, in the order in which they are called."""
        return self._listeners

    @classmethod
    def of(cls, listeners: Iterable[InstrumentationListener]) -> Instrumentation | None:
        """Return None without listeners, so that reporting costs one check."""
        made = cls(listeners)
        return made if made._listeners else None

    def report(self, event: InstrumentationEvent) -> None:
        """Pass an event to every listener."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                log.exception("listener %r failed on %s", listener, type(event).__name__)

    def report_commit(self, units: Sequence[Unit], reply: CommitReply, duration_s: float) -> None:
        """Report a commit and what its units changed."""
        refused = sum(not isinstance(receipt, Committed) for receipt in reply.receipts)
        self.report(BatchCommitted(len(units), refused, len(reply.claimed.claims), duration_s))
        for unit, receipt in zip(units, reply.receipts, strict=True):
            if isinstance(receipt, Committed) and not receipt.repeated:
                self._report_unit(unit, receipt)

    def report_claims(self, claims: Iterable[Claim], worker: str) -> None:
        """Report the claims of one answer."""
        for claim in claims:
            self.report(JobClaimed(claim.job, claim.queue, claim.name, claim.run, claim.attempt, worker))

    def report_lost(self, claims: Iterable[Claim], worker: str) -> None:
        """Report lost leases."""
        for claim in claims:
            self.report(LeaseLost(claim.job, claim.queue, claim.run, claim.attempt, worker))

    def _report_unit(self, unit: Unit, receipt: Receipt) -> None:
        added = receipt.added if isinstance(receipt, Committed) else []
        for job, is_new in zip(unit.jobs, added, strict=False):
            if is_new:
                self.report(JobEnqueued(job.id, job.queue, job.name, job.run, job.due))
        settled = {wait.id for wait in unit.waits if isinstance(wait, SettleWait)}
        for wait in unit.waits:
            if isinstance(wait, SettleWait):
                self.report(WaitChanged(wait.id, wait.state))
            elif wait.id not in settled:  # else it is written again only to guard the settling
                self.report(WaitChanged(wait.id, "pending", wait.kind, wait.run))
        if unit.schedule is not None:
            move = unit.schedule
            self.report(ScheduleSlot(move.id, move.slot, move.next))
