"""What an engine says of a claim, and what an attempt says back: the seam between the worker and its engines."""

from __future__ import annotations

import asyncio
import os
import traceback
from typing import Any, Protocol

import msgspec

from ..commit.committer import Intent
from ..core.errors import PenstockError
from ..core.event_bodies import EventBodies
from ..core.payload import pack
from ..core.retry import error_attribute
from ..durable.journal import PendingWrites
from ..handlers.handler import Handler
from ..ports.unit import Claim, StateWrite

MAX_STACK = 8_000
MAX_MESSAGE = 2_000
# Secrets are hidden first and the text is cut after: half a key would not be recognised.
MARGIN = 8_000


class Emitted(msgspec.Struct, frozen=True):
    """An event a handler emitted, not yet recorded."""

    kind: str
    data: bytes
    correlation_id: str | None = None


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as events, dead letters and people see it."""

    error: str
    name: str
    code: str | None = None
    stack: str | None = None

    @classmethod
    def of(cls, problem: BaseException, recorder: EventBodies) -> ErrorInfo:
        """The error with its stack in the user's own code, its secrets hidden."""
        code = error_attribute(problem, "code")
        stack = None
        if not isinstance(problem, PenstockError) or problem.__traceback__ is not None:
            frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if not _ours(frame.filename)]
            if frames:
                lines = [*traceback.format_list(frames), *_last_lines(problem)]
                stack = recorder.text(_clean("".join(lines)[-MAX_STACK - MARGIN :]))[-MAX_STACK:]
        return cls(
            recorder.text(_text(problem))[:MAX_MESSAGE],
            type(problem).__name__,
            recorder.text(_clean(_str(code))) or None if code is not None else None,
            stack,
        )


_OURS = tuple(os.path.dirname(file) + os.sep for file in (os.path.dirname(__file__), asyncio.__file__))


def unrecorded(error: ErrorInfo, problem: BaseException, recorder: EventBodies) -> ErrorInfo:
    """The same error, and that something went wrong while it was recorded; its stack is left out."""
    why = recorder.text(f"{type(problem).__name__}: {_text(problem)}")[:MAX_MESSAGE]
    return ErrorInfo(f"{error.error} (what else it left could not be recorded: {why})", error.name, error.code)


def _ours(file: str) -> bool:
    return file.startswith(_OURS)


def _text(problem: BaseException) -> str:
    text = _str(problem)
    if text and isinstance(problem, KeyError):
        text = f"KeyError: {text}"  # the bare key says nothing
    return _clean((text or type(problem).__name__)[: MAX_MESSAGE + MARGIN])


def _str(value: object) -> str:
    try:
        return str(value)
    except Exception:  # an error that cannot even say what it is still has to be recorded
        return ""


def _last_lines(problem: BaseException) -> list[str]:
    try:
        return traceback.format_exception_only(problem)
    except Exception:  # a SyntaxError made by hand, its parts of any type
        return [f"{type(problem).__name__}\n"]


def _clean(text: str) -> str:
    """An error can hold anything; what is recorded is text every language reads."""
    return text.encode("utf-8", "replace").decode()


class Spoken(msgspec.Struct):
    """What the handler did and said up to the attempt's end."""

    frames: list[bytes]
    progress: bytes | None
    started_ms: int
    ended_ms: int
    logs: list[str] = []


class Success(msgspec.Struct):
    """The handler returned."""

    spoken: Spoken
    result: bytes
    emitted: list[Emitted]
    state: list[StateWrite]
    kept: PendingWrites = msgspec.field(default_factory=PendingWrites)
    divert: str | None = None  # the step that takes over, its wait having been in vain


class Failure(msgspec.Struct):
    """The handler raised, or was not run for a reason of its own."""

    spoken: Spoken
    error: ErrorInfo
    retry_in_ms: int | None  # None: this failure is final
    schema_error: dict[str, Any] | None = None
    kept: PendingWrites = msgspec.field(default_factory=PendingWrites)
    bare: bool = False  # all that could be left out of it is


class Waiting(msgspec.Struct):
    """The handler waits: it is run again when one of its gates opens, or at `due`."""

    spoken: Spoken
    emitted: list[Emitted]
    state: list[StateWrite]
    kept: PendingWrites
    due: int | None


class Stopped(msgspec.Struct):
    """The attempt was interrupted: its run was cancelled, or its worker is shutting down."""

    spoken: Spoken
    reason: str


class Limited(msgspec.Struct):
    """The handler met a limit of the outside world: its job goes back, and its queue is held for a while."""

    spoken: Spoken
    hold_ms: int
    reason: str
    kept: PendingWrites = msgspec.field(default_factory=PendingWrites)


Ending = Success | Failure | Waiting | Stopped | Limited


class Work(Protocol):
    """One claim as its engine understands it."""

    claim: Claim
    handler: Handler
    recorder: EventBodies
    stream: str
    subject: str | None  # of its events; None where the stream's name says it
    shown_correlation: str | None  # likewise
    run_id: str | None
    flow: str | None
    step: str | None
    n: int
    correlation_id: str
    public_url: str

    def check_emit(self, kind: str, data: bytes) -> None:
        """Raises if the handler may not emit this."""
        ...

    def succeeded(self, success: Success) -> Intent: ...

    def failed(self, failure: Failure) -> Intent: ...

    def suspended(self, waiting: Waiting) -> Intent: ...

    def stopped(self, stopped: Stopped) -> Intent: ...

    def limited(self, limited: Limited) -> Intent: ...


class Engine(Protocol):
    """Understands the claims of some queues."""

    async def open(self, claim: Claim) -> Work: ...


def packed(value: Any) -> bytes:
    """Internal records: the same rules as payloads, with room for a payload inside."""
    return pack(value, "record", 256 * 1024)
