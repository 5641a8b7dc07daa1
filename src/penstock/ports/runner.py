"""The runner port: a task as data in, a channel for everything the running handler emits, asks and records.

A runner may execute a handler on the event loop, on a thread, in a child process or in another language. A runner in
this process calls `channel.invoke()`. Any other runner sends the task to its host and passes the host's frames (see
frames.py) to `channel.post` and `channel.call`; `runners/remote.py` does that for any pair of pipes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol

import msgspec

from .frames import Notice, Request

Interrupt = Callable[[str], None]
"""Stops the running handler; the argument is the reason."""

Execute = Callable[[int, Any], Awaitable[Any]]
"""Calls function `n` of the host with a value and returns its result: the body of a `ctx.run`, or of a state patch."""


class HandlerRef(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Which function to call, so that another process can find it."""

    name: str
    queue: str
    file: str = ""
    function: str | None = None  # its qualified name in `file`; None for a function that exists only in this process
    is_async: bool = False


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


class Channel(Protocol):
    """The attempt, as its runner sees it. Call it on the event loop's thread."""

    def invoke(self) -> Any:
        """Call the handler in this process: return its result, or its coroutine if it is async."""
        ...

    def on_interrupt(self, interrupt: Interrupt) -> None:
        """Register how to stop the handler. Register it before the handler starts."""
        ...

    def post(self, frame: Notice) -> None:
        """Take a frame that needs no answer. Raises what the same `ctx` call would raise."""
        ...

    async def call(self, request: Request, execute: Execute, site: str | None = None) -> Any:
        """Answer a request of the handler; the answer has a JSON form.

        Raises what the same `ctx` call would raise. `Suspension` and `AttemptCancelled` end the attempt: stop the
        handler, and raise them from `Runner.run`. `site` is the line of the handler that makes the call.
        """
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
