"""Runs a handler in another process: sends the task, serves the handler's calls, and returns how it ended.

What carries the frames is a `Connection`: a pair of pipes, a socket. Starting and killing the process is its owner's.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Coroutine
from typing import Any, Protocol

import msgspec

from ..core.errors import (
    AttemptCancelled,
    NotJSON,
    PayloadError,
    PayloadTooLarge,
    Permanent,
    RateLimited,
    Retry,
    RunnerLost,
    SchemaViolation,
    Suspension,
)
from ..core.retry import read_error_attribute
from ..ports.frames import (
    Answer,
    Blocked,
    Call,
    Cancel,
    Done,
    ErrorFrame,
    Execute,
    Executed,
    Failed,
    HandlerFrame,
    Heartbeat,
    Inspected,
    Ready,
    Run,
    Suspend,
    WorkerFrame,
)
from ..ports.runner import Channel, Task, time_out

_KNOWN = {cls.__name__: cls for cls in (Permanent, NotJSON, PayloadTooLarge, PayloadError, RunnerLost, SchemaViolation)}


class Connection(Protocol):
    """Carries frames to and from one handler."""

    def send(self, frame: WorkerFrame) -> None:
        """Send a frame; ignored if the other side is gone."""
        ...

    async def receive(self) -> HandlerFrame | None:
        """Return the next frame; None when the other side is gone. Raises ValueError for a frame it cannot read."""
        ...


class RemoteHandlerError(Exception):
    """An exception of a handler in another process. It is raised as a subclass that has the original name."""

    def __init__(self, error: ErrorFrame) -> None:
        super().__init__(error.message)
        self.code = error.code
        self.remote_stack = error.stack
        if error.retriable is not None:
            self.retriable = error.retriable
        if error.after_ms is not None:
            self.after = error.after_ms / 1000


class RemoteRun:
    """One task on one connection."""

    def __init__(self, task: Task, channel: Channel, connection: Connection) -> None:
        self._task = task
        self._channel = channel
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[Any] = self._loop.create_future()
        self._raised: dict[int, BaseException] = {}  # by the id of the call whose answer it was
        self._executing: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._calls: set[asyncio.Task[None]] = set()
        self._unanswered: set[int] = set()

    async def run(self) -> Any:
        """Return the handler's result, or raise what it raised."""
        self._channel.on_interrupt(self._interrupt)
        self._connection.send(Run(msgspec.Raw(msgspec.json.encode(self._task))))
        reading = self._loop.create_task(self._read(), name="penstock-frames")
        try:
            async with asyncio.timeout(self._task.timeout_s) as limit:
                return await self._end
        except TimeoutError:
            if not limit.expired():
                raise
            self._connection.send(Cancel("timeout"))
            raise time_out(self._task.timeout_s or 0) from None
        finally:
            for task in (reading, *self._calls):
                task.cancel()
            await asyncio.wait((reading, *self._calls))
            if self._end.done() and not self._end.cancelled():
                self._end.exception()  # a second end, after a timeout: nobody asks for it

    def _interrupt(self, reason: str) -> None:
        self._connection.send(Cancel(reason))
        self._fail(AttemptCancelled(reason))

    def _fail(self, problem: BaseException) -> None:
        if not self._end.done():
            self._end.set_exception(problem)

    async def _read(self) -> None:
        try:
            while not self._end.done():
                self._take(await self._receive())
        except asyncio.CancelledError:
            raise
        except BaseException as problem:  # what a notice raised is what the handler's own call would have raised
            self._fail(problem)

    async def _receive(self) -> HandlerFrame:
        name = self._task.handler.name
        try:
            frame = await self._connection.receive()
        except ValueError as problem:  # also what msgspec raises
            raise RunnerLost(f"the process that ran {name} sent a bad frame: {problem}") from None
        if frame is None:
            raise RunnerLost(f"the process that ran {name} ended before its handler returned")
        return frame

    def _take(self, frame: HandlerFrame) -> None:
        match frame:
            case Call():
                self._unanswered.add(frame.id)
                self._start(self._answer(frame))
            case Blocked():
                self._loop.call_soon(self._report_blocked, frame)  # after the calls that came before it
            case Executed(id, value, error):
                waiting = self._executing.pop(id, None)
                if waiting is not None and not waiting.done():
                    if error is None:
                        waiting.set_result(value)
                    else:
                        problem = to_exception(error, self._raised)
                        problem.__dict__["executed"] = id  # the host has the original
                        waiting.set_exception(problem)
            case Done(result):
                if not self._end.done():
                    self._end.set_result(result)
            case Failed(error):
                self._fail(to_exception(error, self._raised))
            case Ready() | Heartbeat() | Inspected():
                pass  # for the owner of the process
            case notice:
                self._channel.post(notice)

    def _report_blocked(self, frame: Blocked) -> None:
        if set(frame.calls) == self._unanswered and not self._end.done():
            self._channel.post(frame)  # else an answer is on its way, and the handler goes on

    def _start(self, call: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(call, name="penstock-call")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _answer(self, call: Call) -> None:
        try:
            value = await self._channel.call(call.request, self._execute, call.site, call.branch, call.loose)
            self._unanswered.discard(call.id)
            self._connection.send(Answer(call.id, value))
        except asyncio.CancelledError:
            raise
        except Suspension as problem:
            self._connection.send(Suspend())
            self._fail(problem)
        except Exception as problem:
            self._raised[call.id] = problem
            self._unanswered.discard(call.id)
            self._connection.send(Answer(call.id, error=to_error(problem)))
        except BaseException as problem:
            self._connection.send(Cancel(str(problem)))
            self._fail(problem)

    async def _execute(self, function: int, value: Any = None) -> Any:
        number = next(self._numbers)
        done = self._executing[number] = self._loop.create_future()
        self._connection.send(Execute(number, function, value))
        return await done


def to_error(problem: BaseException) -> ErrorFrame:
    """Return an exception as data."""
    code = read_error_attribute(problem, "code")
    bases = [cls.__name__ for cls in type(problem).__mro__[1:] if cls not in (object, BaseException, Exception)]
    failure = getattr(problem, "failure", None)
    return ErrorFrame(
        type(problem).__name__,
        str(problem),
        bases,
        str(code) if code is not None else None,
        failure=msgspec.to_builtins(failure) if isinstance(failure, msgspec.Struct) else None,
        executed=getattr(problem, "executed", None),
    )


def to_exception(error: ErrorFrame, raised: dict[int, BaseException]) -> BaseException:
    """Return the exception that a frame stands for: the very one an answer raised, one of ours, or a stand-in."""
    if error.answer is not None and error.answer in raised:
        return raised[error.answer]
    after = (error.after_ms or 0) / 1000
    if error.name == Retry.__name__:
        return Retry(error.message, after=None if error.after_ms is None else after)
    if error.name == RateLimited.__name__:
        return RateLimited(after, error.message)
    if error.name in _KNOWN:
        return _KNOWN[error.name](error.message)
    cls: type[RemoteHandlerError] = RemoteHandlerError
    for name in (*reversed(error.bases), error.name):
        with contextlib.suppress(ValueError):  # of a name with a null character
            cls = type(name, (cls,), {})
    return cls(error)
