"""The runner port: a task as data in, a channel for everything the running handler emits, asks and records.

A runner may execute a handler on the event loop, on a thread, in a child process or in another language. A runner in
this process calls `channel.invoke()`. Any other runner sends the task to its host and passes the host's frames (see
frames.py) to `channel.post` and `channel.call`; `runners/remote.py` does that for any pair of pipes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol

import msgspec

from ..core.errors import AttemptTimeout
from .frames import Notice, Request

Interrupt = Callable[[str], None]
"""Stops the running handler; the argument is the reason."""


class HandlerState(msgspec.Struct, frozen=True):
    """Where a running handler is, and the memory of the process that it runs in."""

    stack: str = ""
    memory_mb: float = 0.0
    output: str = ""  # the last line that it printed, if the runner knows it


Inspect = Callable[[], Awaitable[HandlerState]]
"""Looks at the running handler."""

Execute = Callable[[int, Any], Awaitable[Any]]
"""Calls function `n` of the host with a value and returns its result: the body of a `ctx.run`, or of a state patch."""


def time_out(timeout_s: float) -> AttemptTimeout:
    """Build the error of an attempt that its runner stopped."""
    problem = AttemptTimeout(
        f"the attempt ran longer than its timeout of {timeout_s:g} s and was cancelled; raise the timeout, or "
        "split the step"
    )
    problem.ends_attempt = True
    return problem


class HandlerRef(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Which function to call, so that another process can find it."""

    name: str
    queue: str
    file: str = ""
    function: str | None = None  # its qualified name in `file`; None for a function that exists only in this process
    is_async: bool = False
    runner: str | None = None  # its name; None for the worker's own process
    version: str = ""  # of the file and what it imports; another one after a change. Empty for Python
    thread: bool | None = None  # run it on a worker thread of Node, or not; None: as the setting says


class NodeBinding(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What the executor of a node receives besides its input."""

    config: Any = None  # rendered, and not converted to its model
    followers: tuple[str, ...] = ()  # ids of the nodes after it: `Next` may name these
    skipped: tuple[str, ...] = ()  # ids of inputs that were skipped


class Task(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One attempt, as data: what to call, with which input, and which attempt it is."""

    handler: HandlerRef
    kind: Literal["flow", "job"]
    input: msgspec.Raw
    job: str
    queue: str
    attempt: int
    scope: str  # the idempotency key of the step or job: the same for every attempt
    correlation_id: str = ""
    run: str | None = None
    flow: str | None = None
    step: str | None = None
    n: int = 1  # which instance of the step
    timeout_s: float | None = None
    memos: Mapping[str, bytes] = {}  # what earlier attempts recorded, by name
    awaited: Any = None  # the event, or the trigger's data, of a declared wait
    node: NodeBinding | None = None  # for the executor of a node
    traceparent: str | None = None  # of the attempt's span, if somebody traces


class Channel(Protocol):
    """The attempt, as its runner sees it. Call it on the event loop's thread."""

    def invoke(self) -> Any:
        """Call the handler in this process: return its result, or its coroutine if it is async."""
        ...

    def on_interrupt(self, interrupt: Interrupt, task: asyncio.Task[Any] | None = None) -> None:
        """Register how to stop the handler, and the task that an `async def` handler runs in, if it is on this loop.

        Register it before the handler starts."""
        ...

    def on_inspect(self, inspect: Inspect) -> None:
        """Register how to look at the handler, if it does not run on this event loop."""
        ...

    def post(self, frame: Notice) -> None:
        """Take a frame that needs no answer. Raises what the same `ctx` call would raise."""
        ...

    async def call(
        self,
        request: Request,
        execute: Execute,
        site: str | None = None,
        is_branch: bool = False,
        is_loose: bool = False,
    ) -> Any:
        """Answer a request of the handler; the answer has a JSON form.

        Raises what the same `ctx` call would raise. `Suspension` and `AttemptCancelled` end the attempt: stop the
        handler, and raise them from `Runner.run`. `site` is the line of the handler that makes the call. A host whose
        handler makes concurrent calls sets `is_branch`, and posts `Blocked` when every branch waits for an answer; for
        calls of other threads it posts `Concurrent` first. With `is_loose`, the call may be of another branch than the
        call before.
        """
        ...


class Gate(Protocol):
    """Decides whether an attempt may call its handler now, and learns how the call ended."""

    async def call(self, run: Callable[[], Awaitable[Any]]) -> Any:
        """Call `run` and return its result, or raise instead: RateLimited, or an error that is retried."""
        ...


class Runner(Protocol):
    """Runs handlers."""

    async def run(self, task: Task, channel: Channel) -> Any:
        """Run the handler once and return its result, or raise what it raised.

        Raises AttemptTimeout after `task.timeout_s`, and AttemptCancelled(reason) after an interrupt.
        """
        ...

    async def close(self) -> None:
        """Stop what the runner has started."""
        ...
