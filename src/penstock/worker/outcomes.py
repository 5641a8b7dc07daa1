"""The seam between the worker and its engines: what a claim means, how its attempt ended, and when to retry it."""

from __future__ import annotations

import random
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ..commit.committer import CommitRequest
from ..context.launch_requests import JobLaunch, RunLaunch
from ..core.errors import (
    AwaitTimeout,
    ChildFailed,
    PayloadError,
    PenstockError,
    ReplayError,
    Retry,
    StaleAttempt,
    UnreadableRecord,
    WaitCancelled,
    WorkerLost,
)
from ..core.events import EventBodies
from ..core.ids import dead_letter_id
from ..core.payload import pack
from ..core.retry import RetryPolicy, read_error_attribute, requested_delay
from ..core.tracebacks import (
    MAX_FILE_CHARS,
    MAX_SOURCE_CHARS,
    StackFrame,
    describe_error,
    extract_frames,
    parse_frames,
    user_frames,
)
from ..durable.child_runs import ChildLaunch, ChildOutcome, ChildRequest
from ..durable.journal import PendingWrites
from ..handlers.handler import Handler
from ..ports.unit import Claim, NewJob, RunParent, StateWrite
from ..telemetry.tracing import AttemptSpan

MAX_RECORD_BYTES = 256 * 1024
MAX_STACK = 8_000
MAX_MESSAGE = 2_000
MAX_HINT = 500
# Secrets are hidden before the text is cut: half a key would not be recognised.
REDACTION_MARGIN = 8_000
_NEVER_RETRIED = (
    *(PayloadError, WorkerLost, StaleAttempt, ReplayError, AwaitTimeout, WaitCancelled, ChildFailed),
    UnreadableRecord,
)


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """An error as events, jobs and dead letters show it."""

    error: str
    name: str
    code: str | None = None
    stack: str | None = None  # without the frames of Penstock
    file: str | None = None  # where the user's code raised it, or called what raised it
    line: int | None = None
    frames: tuple[StackFrame, ...] = ()  # the last ones of the user's own files
    dead_letter: str | None = None  # id of the dead letter, if the failure is final and made one

    @classmethod
    def from_exception(cls, problem: BaseException, bodies: EventBodies) -> ErrorInfo:
        """Describe an exception, with its stack in the user's code and its secrets hidden."""
        code = read_error_attribute(problem, "code")
        stack, frames = _stack_and_frames(problem, bodies)
        last = frames[-1] if frames else None
        return cls(
            bodies.redact_text(_message(problem))[:MAX_MESSAGE],
            type(problem).__name__,
            bodies.redact_text(_clean(_str(code))) or None if code is not None else None,
            stack,
            last.file if last is not None else None,
            last.line if last is not None else None,
            frames,
        )


class EmittedEvent(msgspec.Struct, frozen=True):
    """An event that a handler emitted, not committed yet."""

    kind: str
    data: bytes
    correlation_id: str | None = None
    tags: list[str] = []


class Launch(msgspec.Struct, frozen=True):
    """A job that a handler enqueued, or a run that it started, not committed yet."""

    label: str  # what it starts: a replay compares it
    id: str  # of the job or of the run
    job: NewJob  # of a run: the internal job that starts it
    is_run: bool = False


class Launcher(Protocol):
    """Builds what a handler starts."""

    def label(self, launch: JobLaunch | RunLaunch) -> str:
        """Return what is started, in words that a replay compares."""
        ...

    def build(self, launch: JobLaunch | RunLaunch, work: Work, index: int) -> Launch:
        """Validate a launch and build its job. `index` counts the launches of the handler."""
        ...

    async def warn(self, launches: Sequence[Launch]) -> None:
        """Warn about launches that are most likely mistakes."""
        ...

    def flow_name(self, flow: Any) -> str:
        """Return the name of a flow. Raise UnknownFlow if it is not loaded."""
        ...

    def build_children(self, request: ChildRequest, work: Work, key: str, call: str) -> ChildLaunch:
        """Validate a call of child runs and build what starts them. `call` is the wait that they resolve."""
        ...

    def convert_result(self, request: ChildRequest, value: Any, run: str) -> Any:
        """Return the result of a child as a value of its type. Raise SchemaViolation if it does not match."""
        ...

    async def read_outcomes(self, run: str, call: str, prefix: str, count: int) -> list[ChildOutcome]:
        """Return how the children of a call ended, in order."""
        ...

    async def read_outcome(self, run: str) -> ChildOutcome | None:
        """Return how a child has ended by now; None if it is gone or open."""
        ...


class AttemptOutput(msgspec.Struct):
    """What the attempt logged and reported and is not written yet, and how long it ran."""

    live_events: list[bytes]  # bodies of log, progress and partial events
    progress: bytes | None
    duration_ms: int
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
    is_counted: bool = True  # False: the attempt gives its number back, because workers died before it
    timed_out: bool = False  # its runner cancelled the attempt

    def name_dead_letter(self, work: Work) -> None:
        """Name the dead letter in the error, if this failure is final and makes one."""
        if self.retry_in_ms is None and work.handler.dead_letters:
            self.error = msgspec.structs.replace(self.error, dead_letter=dead_letter_id(work.claim.job))


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
    is_counted: bool = True  # False: the handler was not called, or a resume continues the attempt


class JobReturn(msgspec.Struct):
    """The handler hit a rate limit or an outage of the store: its job is released, with no failure counted.

    It is not claimed for `delay_ms`. With `holds_queue`, no job of its queue is."""

    output: AttemptOutput
    reason: str
    delay_ms: int
    holds_queue: bool
    writes: PendingWrites = msgspec.field(default_factory=PendingWrites)
    is_counted: bool = True  # False: the handler was not called


AttemptResult = Success | Failure | WaitSuspension | Interruption | JobReturn


class Work(Protocol):
    """A claim as its engine understands it, and how each result of its attempt is committed."""

    claim: Claim
    handler: Handler
    bodies: EventBodies
    stream: str
    subject: str | None  # of its events; None where the stream's name implies it
    shown_correlation: str | None  # of its events; None where the stream's name implies it
    run_id: str | None
    flow: str | None
    step: str | None
    n: int
    family: str  # of its events: `step`, `job` or `node`
    correlation_id: str
    public_url: str
    launcher: Launcher | None  # None: its handlers start nothing
    parent: RunParent | None  # of its run
    trace: str | None  # the `traceparent` of what started it; of its own span, once it has one
    span: AttemptSpan | None  # None: nobody traces
    routed: Mapping[str, str]  # of a route: the ids of what it starts, by the ids that stood for them

    def check_emit(self, kind: str, data: bytes) -> None:
        """Raise if the handler may not emit this."""
        ...

    def on_success(self, success: Success) -> CommitRequest: ...

    def on_failure(self, failure: Failure) -> CommitRequest: ...

    def on_suspension(self, suspension: WaitSuspension) -> CommitRequest: ...

    def on_interruption(self, interruption: Interruption) -> CommitRequest: ...

    def on_return(self, returned: JobReturn) -> CommitRequest: ...

    def on_resumed(self) -> CommitRequest | None:
        """Return what records that a waiting run runs again; None if there is nothing to record."""
        ...

    def on_call(self) -> CommitRequest | None:
        """Return what records that the run has called another one, before a call is registered while the handler
        continues; None if that is recorded."""
        ...


class ClaimOpener(Protocol):
    """Opens the claims of one kind of work."""

    async def open(self, claim: Claim) -> Work:
        """Return what the claim means: its handler, and how its results are committed."""
        ...


def pack_record(value: Any) -> bytes:
    """Pack an internal record: the rules of payloads, with room for a whole payload inside."""
    return pack(value, "record", MAX_RECORD_BYTES)


def plan_retry(
    problem: BaseException, policy: RetryPolicy, failures: int, rng: random.Random, bodies: EventBodies
) -> tuple[ErrorInfo, int | None]:
    """Return the error to record and the milliseconds until the next attempt; None when this failure is final.

    `failures` counts this one too.
    """
    delay = None if isinstance(problem, _NEVER_RETRIED) else policy.next_delay_ms(problem, failures, rng)
    error = ErrorInfo.from_exception(problem, bodies)
    if isinstance(problem, Retry) and failures >= policy.attempts:
        used = f"{failures} of {policy.attempts} attempt{'s are' if policy.attempts > 1 else ' is'} used"
        return _add_hint(error, f"{used}; raise `retry=` for more"), delay
    if delay is not None and not isinstance(problem, Retry):  # whose message has the hint already
        return _add_hint(error, bodies.redact_text(requested_delay(problem)[1])[:MAX_HINT]), delay
    return error, delay


def add_recording_error(error: ErrorInfo, problem: BaseException, bodies: EventBodies) -> ErrorInfo:
    """Add to an error why the rest of its attempt could not be recorded; stack and frames are left out."""
    why = bodies.redact_text(describe_error(type(problem).__name__, _message(problem)))[:MAX_MESSAGE]
    text = f"{error.error} (the rest of the attempt could not be recorded: {why})"
    return ErrorInfo(text, error.name, error.code, file=error.file, line=error.line)


def _add_hint(error: ErrorInfo, hint: str) -> ErrorInfo:
    return msgspec.structs.replace(error, error=f"{error.error} ({hint})") if hint else error


def _stack_and_frames(problem: BaseException, bodies: EventBodies) -> tuple[str | None, tuple[StackFrame, ...]]:
    remote = read_error_attribute(problem, "remote_stack")  # of a handler in another process
    if isinstance(remote, str):
        return _redact_stack(remote, bodies), _redact_frames(parse_frames(remote), bodies)
    if isinstance(problem, PenstockError) and problem.__traceback__ is None:
        return None, ()
    found = extract_frames(problem)
    if not found:
        return None, ()
    text = "".join([*traceback.format_list(found), *_last_lines(problem)])
    return _redact_stack(text, bodies), _redact_frames(user_frames(found), bodies)


def _redact_stack(text: str, bodies: EventBodies) -> str:
    return bodies.redact_text(_clean(text[-MAX_STACK - REDACTION_MARGIN :]))[-MAX_STACK:]


def _redact_frames(frames: list[StackFrame], bodies: EventBodies) -> tuple[StackFrame, ...]:
    return tuple(
        StackFrame(
            _clean(frame.file[-MAX_FILE_CHARS:]),
            frame.line,
            _clean(frame.function[:MAX_SOURCE_CHARS]),
            bodies.redact_text(_clean(frame.source[:REDACTION_MARGIN]))[:MAX_SOURCE_CHARS],
        )
        for frame in frames
    )


def _message(problem: BaseException) -> str:
    text = _str(problem)
    if text and isinstance(problem, KeyError):
        text = f"KeyError: {text}"  # the bare key explains nothing
    return _clean((text or type(problem).__name__)[: MAX_MESSAGE + REDACTION_MARGIN])


def _str(value: object) -> str:
    try:
        return str(value)
    except Exception:  # an error without a usable text must be recorded too
        return ""


def _last_lines(problem: BaseException) -> list[str]:
    try:
        return traceback.format_exception_only(problem)
    except Exception:  # a hand-made SyntaxError whose parts have any type
        return [f"{type(problem).__name__}\n"]


def _clean(text: str) -> str:
    """Replace what is not valid UTF-8: an error can contain anything."""
    return text.encode("utf-8", "replace").decode()
