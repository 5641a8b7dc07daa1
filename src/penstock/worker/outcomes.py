"""The seam between the worker and its engines: what a claim means, and how its attempt ended."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from ..commit.committer import CommitRequest
from ..core.events import EventBodies
from ..core.payload import pack
from ..durable.journal import PendingWrites
from ..handlers.handler import Handler
from ..ports.unit import Claim, StateWrite
from .failures import ErrorInfo

MAX_RECORD_BYTES = 256 * 1024


class EmittedEvent(msgspec.Struct, frozen=True):
    """An event that a handler emitted, not committed yet."""

    kind: str
    data: bytes
    correlation_id: str | None = None


class AttemptOutput(msgspec.Struct):
    """What the attempt logged and reported and is not written yet, and when it ran."""

    live_events: list[bytes]  # bodies of log, progress and partial events
    progress: bytes | None
    started_ms: int
    ended_ms: int
    logs: list[str] = []


class Success(msgspec.Struct):
    """The handler returned."""

    output: AttemptOutput
    result: bytes
    emitted: list[EmittedEvent]
    state: list[StateWrite]
    writes: PendingWrites = msgspec.field(default_factory=PendingWrites)
    timeout_step: str | None = None  # its declared wait timed out, and this step takes over


class Failure(msgspec.Struct):
    """The handler raised, or could not be called."""

    output: AttemptOutput
    error: ErrorInfo
    retry_in_ms: int | None  # None: this failure is final
    schema_error: dict[str, Any] | None = None
    writes: PendingWrites = msgspec.field(default_factory=PendingWrites)
    is_bare: bool = False  # only the error is left: the rest could not be recorded


class WaitSuspension(msgspec.Struct):
    """The handler waits: it runs again when one of its waits is settled, or at `due`."""

    output: AttemptOutput
    emitted: list[EmittedEvent]
    state: list[StateWrite]
    writes: PendingWrites
    due: int | None


class Interruption(msgspec.Struct):
    """The attempt was stopped: its run was cancelled, its lease was lost, or its worker shuts down."""

    output: AttemptOutput
    reason: str


class RateLimitHit(msgspec.Struct):
    """The handler raised RateLimited: its job is released, and its queue is held for `hold_ms`."""

    output: AttemptOutput
    hold_ms: int
    reason: str
    writes: PendingWrites = msgspec.field(default_factory=PendingWrites)


AttemptResult = Success | Failure | WaitSuspension | Interruption | RateLimitHit


class Work(Protocol):
    """A claim as its engine understands it, and how each result of its attempt is committed."""

    claim: Claim
    handler: Handler
    bodies: EventBodies
    stream: str
    subject: str | None  # of its events; None where the stream's name implies it
    shown_correlation: str | None  # likewise
    run_id: str | None
    flow: str | None
    step: str | None
    n: int
    correlation_id: str
    public_url: str

    def check_emit(self, kind: str, data: bytes) -> None:
        """Raise if the handler may not emit this."""
        ...

    def on_success(self, success: Success) -> CommitRequest: ...

    def on_failure(self, failure: Failure) -> CommitRequest: ...

    def on_suspension(self, suspension: WaitSuspension) -> CommitRequest: ...

    def on_interruption(self, interruption: Interruption) -> CommitRequest: ...

    def on_rate_limit(self, hit: RateLimitHit) -> CommitRequest: ...


class Engine(Protocol):
    """Opens the claims of one kind of work."""

    async def open(self, claim: Claim) -> Work:
        """Return what the claim means: its handler, and how its results are committed."""
        ...


def pack_record(value: Any) -> bytes:
    """Pack an internal record: the rules of payloads, with room for a whole payload inside."""
    return pack(value, "record", MAX_RECORD_BYTES)
