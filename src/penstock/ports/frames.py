"""Frames: the messages between a worker and a handler that runs in another process, as JSON objects with a `type`.

The host sends notices (no answer), calls (each with an id that its answer repeats) and one end. The worker sends the
task, answers, and requests to execute a function that only the host has. Times are milliseconds. The order of frames is
in docs/runner-protocol.md.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Frame(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Base of all frames: camelCase keys, defaults left out."""


MAX_FRAME_BYTES = 1024 * 1024  # with its line break
MAX_LARGE_FRAME_BYTES = 128 * 2**20  # if there is a blob store: values may be large


def max_frame_bytes(lifts_limits: bool) -> int:
    """Return how large a frame may be."""
    return MAX_LARGE_FRAME_BYTES if lifts_limits else MAX_FRAME_BYTES


# Notices


class Emit(Frame, frozen=True, tag="emit"):
    """`ctx.emit`: an event that appears when the attempt commits."""

    kind: str
    data: Any = None
    correlation_id: str | None = None
    tags: list[str] = []


class Log(Frame, frozen=True, tag="log"):
    """`ctx.log`: a line for the run's stream and for the worker's log."""

    message: str
    level: str = "info"
    fields: dict[str, Any] = {}


class Progress(Frame, frozen=True, tag="progress"):
    """`ctx.progress`: shown live."""

    value: Any


class Partial(Frame, frozen=True, tag="partial"):
    """`ctx.partial`: a piece of output, shown live."""

    chunk: Any


class StateSet(Frame, frozen=True, tag="state.set"):
    """`ctx.state.set`, or `ctx.shared.set`: written when the attempt commits."""

    key: str
    value: Any
    ttl_ms: int | None = None
    shared: bool = False


class StateDelete(Frame, frozen=True, tag="state.delete"):
    """`ctx.state.delete`: written when the attempt commits."""

    key: str
    shared: bool = False


class Blocked(Frame, frozen=True, tag="blocked"):
    """Every branch of the handler waits for an answer. A handler with concurrent calls sends it each time this is so.

    `calls` are the ids without an answer. The step suspends if all of them are waits. The worker ignores the frame if
    it has answered one of them meanwhile."""

    calls: list[int]


class BlobClose(Frame, frozen=True, tag="blob.close"):
    """The handler reads no further in a blob."""

    read: int


class Concurrent(Frame, frozen=True, tag="concurrent"):
    """Another thread or task than the handler's own is about to do something: the order of what the handler does may
    differ when it runs again. A host sends it before the first such frame."""


Notice = Emit | Log | Progress | Partial | StateSet | StateDelete | Blocked | Concurrent | BlobClose


# Durable calls, as data


class RunFunction(Frame, frozen=True, tag="run"):
    """`ctx.run(name, fn)`: the worker asks for an `Execute` of `function` unless the call is recorded."""

    name: str
    function: int
    retry: dict[str, Any] | int | None = None
    timeout_ms: int | None = None


class WaitTime(Frame, frozen=True, tag="wait.time"):
    """`ctx.wait.time`: for a duration, or until a moment."""

    delay_ms: int | None = None
    until_ms: int | None = None
    name: str = "time"


class WaitEvent(Frame, frozen=True, tag="wait.event"):
    """`ctx.wait.event`: the answer is the event."""

    kind: str
    match: dict[str, Any] | None = None
    timeout_ms: int | None = None
    name: str | None = None
    past: bool = True
    where: int | None = None  # a function of the event, executed for each event that matches


class WaitTrigger(Frame, frozen=True, tag="wait.trigger"):
    """`trigger.wait()`: the answer is the data that the trigger was fired with."""

    trigger: str  # the id from the answer to NewTrigger


class CallRun(Frame, frozen=True, tag="call.run"):
    """`ctx.call`, or with `many` `ctx.call_many`, whose `input` is the list of inputs: the answer is the result.

    With `on_failure` "return", a failed run is an object with `run`, `flow`, `status`, `error` and `code`."""

    flow: str
    input: Any = None
    many: bool = False
    key: str | None = None
    timeout_ms: int | None = None
    on_failure: Literal["raise", "return"] = "raise"
    on_timeout: Literal["cancel", "abandon"] = "cancel"
    name: str | None = None
    priority: int | None = None
    correlation_id: str | None = None
    tags: dict[str, str] | None = None


DurableCallFrame = RunFunction | WaitTime | WaitEvent | WaitTrigger | CallRun


# Requests


class StateGet(Frame, frozen=True, tag="state.get"):
    """The answer is `{"found": bool, "value": …}`."""

    key: str
    shared: bool = False


class StateList(Frame, frozen=True, tag="state.list"):
    """The answer is an object of keys and values."""

    prefix: str = ""
    limit: int = 100
    shared: bool = False
    after: str | None = None


class StatePatch(Frame, frozen=True, tag="state.patch"):
    """Change a value atomically: the worker executes `function` with the stored value. The answer is the new one."""

    key: str
    function: int
    ttl_ms: int | None = None
    name: str | None = None
    shared: bool = False


class AwaitCall(Frame, frozen=True, tag="await"):
    """Await one durable call."""

    call: DurableCallFrame


class AwaitAll(Frame, frozen=True, tag="all"):
    """`ctx.all`: the answer is the list of values."""

    calls: list[DurableCallFrame]


class AwaitFirst(Frame, frozen=True, tag="first"):
    """`ctx.first`: the answer is `[name, value]` of the call that was done first."""

    calls: dict[str, DurableCallFrame]
    name: str = "first"


class NewTrigger(Frame, frozen=True, tag="trigger"):
    """`ctx.wait.trigger`: the answer is `{"id": …, "name": …}`."""

    name: str
    kind: Literal["webhook", "user", "api"] = "webhook"
    timeout_ms: int | None = None
    payload: Any = None
    schema: dict[str, Any] | None = None
    signed: str | None = None
    signed_id: Literal["trigger", "any"] = "trigger"


class TriggerToken(Frame, frozen=True, tag="trigger.token"):
    """`trigger.token` and `trigger.url`: the answer is `{"token": …, "url": …}`."""

    trigger: str


class RecordedValue(Frame, frozen=True, tag="value"):
    """`ctx.now`, `ctx.uuid`, `ctx.random`: the same value in every run of the handler. `now` is in milliseconds."""

    of: Literal["now", "uuid", "random"]


class Children(Frame, frozen=True, tag="children"):
    """`ctx.children_values`, `ctx.failed_children`, `ctx.remove_children`."""

    what: Literal["values", "failed", "remove"]


class EnqueueJob(Frame, frozen=True, tag="enqueue"):
    """`ctx.enqueue`: the answer is the job's id. The job is added when the attempt commits."""

    queue: str
    input: Any = None
    key: str | None = None
    name: str | None = None
    delay_ms: int | None = None
    priority: int | None = None
    retry: dict[str, Any] | int | None = None
    correlation_id: str | None = None
    order_key: str | None = None
    at_ms: int | None = None


class StartRun(Frame, frozen=True, tag="start"):
    """`ctx.start`: the answer is the run's id. The run starts when the attempt commits."""

    flow: str
    input: Any = None
    key: str | None = None
    delay_ms: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    tags: dict[str, str] | None = None
    at_ms: int | None = None


BLOB_PART_BYTES = 512 * 1024  # in one frame; it is in base64 there


class BlobPut(Frame, frozen=True, tag="blob.put"):
    """`ctx.blob.put`: the worker executes `function` for part after part, in base64, until it is null. The answer is
    the blob."""

    key: str
    function: int
    content_type: str | None = None


class BlobRead(Frame, frozen=True, tag="blob.read"):
    """`ctx.blob.get` and `stream`: the next part of a blob. Without `read`, the first one.

    The answer is `{"read": …, "part": …}`, the part in base64, and null after the last one."""

    key: str
    read: int | None = None


class BlobInfo(Frame, frozen=True, tag="blob.info"):
    """The answer is the blob."""

    key: str


class BlobDelete(Frame, frozen=True, tag="blob.delete"):
    """The answer is whether there was one."""

    key: str


class BlobUrl(Frame, frozen=True, tag="blob.url"):
    """The answer is a URL that works until it expires."""

    key: str
    expires_ms: int | None = None
    method: str = "GET"


Request = (
    StateGet
    | StateList
    | StatePatch
    | AwaitCall
    | AwaitAll
    | AwaitFirst
    | NewTrigger
    | TriggerToken
    | RecordedValue
    | Children
    | EnqueueJob
    | StartRun
    | BlobPut
    | BlobRead
    | BlobInfo
    | BlobDelete
    | BlobUrl
)


# What the host sends besides notices


class ErrorFrame(Frame, frozen=True):
    """An exception, as data."""

    name: str  # of its class
    message: str = ""
    bases: list[str] = []  # names of its base classes, nearest first: `retriable_errors` may list one of them
    code: str | None = None
    stack: str | None = None
    after_ms: int | None = None  # of Retry and RateLimited
    retriable: bool | None = None
    answer: int | None = None  # the id of the call whose answer was this very exception
    failure: dict[str, Any] | None = None  # of the child run, for ChildFailed
    executed: int | None = None  # the id of the Execute whose function raised it


class Call(Frame, frozen=True, tag="call"):
    """A request that needs an answer. `site` is `file:line` of the handler.

    Without `branch`, the handler does nothing else until it has the answer: it may be suspended at once. With `branch`,
    it may go on in another branch, and sends `Blocked` when none does. With `loose`, another branch than that of the
    call before may make it: the host knows only that some calls follow from the answer to the one before."""

    id: int
    request: Request
    site: str | None = None
    branch: bool = False
    loose: bool = False


class Executed(Frame, frozen=True, tag="executed"):
    """The result of an `Execute`."""

    id: int
    value: Any = None
    error: ErrorFrame | None = None


class Done(Frame, frozen=True, tag="done"):
    """The handler returned."""

    result: Any = None


class Failed(Frame, frozen=True, tag="error"):
    """The handler raised. RateLimited and Retry are errors too: their `after_ms` says when."""

    error: ErrorFrame


class Ready(Frame, frozen=True, tag="ready"):
    """The host runs no handler and takes the next task. A warm host sends it when it has started, and after every
    handler, also one that was suspended or cancelled, once nothing of that handler runs any more."""

    rss_mb: float = 0.0


class Heartbeat(Frame, frozen=True, tag="heartbeat"):
    """The answer to a `Ping`: the host reads its frames."""

    rss_mb: float = 0.0


class Inspected(Frame, frozen=True, tag="inspected"):
    """The answer to an `Inspect`: where the handler is now."""

    id: int
    stack: str = ""
    rss_mb: float = 0.0


HandlerFrame = (
    Emit
    | Log
    | Progress
    | Partial
    | StateSet
    | StateDelete
    | Blocked
    | BlobClose
    | Concurrent
    | Call
    | Executed
    | Done
    | Failed
    | Ready
    | Heartbeat
    | Inspected
)


# What the worker sends


class Run(Frame, frozen=True, tag="run"):
    """Run this task (see ports.runner.Task)."""

    task: msgspec.Raw


class Answer(Frame, frozen=True, tag="answer"):
    """The answer to a call."""

    id: int
    value: Any = None
    error: ErrorFrame | None = None


class Execute(Frame, frozen=True, tag="execute"):
    """Call function `function` with `value` (of a state patch; a `ctx.run` takes none), and send `Executed`."""

    id: int
    function: int
    value: Any = None


class Suspend(Frame, frozen=True, tag="suspend"):
    """The attempt waits: stop the handler. It runs again from the top when the wait is settled."""


class Cancel(Frame, frozen=True, tag="cancel"):
    """Stop the handler: its run was cancelled, its lease was lost, or its time is up."""

    reason: str


class Ping(Frame, frozen=True, tag="ping"):
    """Send a `Heartbeat`."""


class Inspect(Frame, frozen=True, tag="inspect"):
    """Send `Inspected`: the stack of the running handler."""

    id: int


WorkerFrame = Run | Answer | Execute | Suspend | Cancel | Ping | Inspect

encode_frame = msgspec.json.Encoder().encode
decode_handler_frame = msgspec.json.Decoder(HandlerFrame).decode
decode_worker_frame = msgspec.json.Decoder(WorkerFrame).decode
