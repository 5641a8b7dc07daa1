"""The host's end of the frames: one JSON object a line, over one socket."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ..core import errors
from ..core.errors import AttemptCancelled, PayloadTooLarge, PenstockError, Suspension
from ..durable.child_runs import ChildFailure
from ..ports import frames
from ..ports.frames import decode_worker_frame, encode_frame, max_frame_bytes

PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


class Wire:
    """Sends frames of any thread, and reads those of the worker on a thread of its own.

    A handler that blocks, even the event loop, still gets answers, and the worker gets its stack.
    """

    def __init__(self, fd: int, *, lifts_limits: bool = False) -> None:
        self._max_bytes = max_frame_bytes(lifts_limits)
        self._socket = socket.socket(fileno=fd)
        os.set_inheritable(fd, False)
        self._lock = threading.Lock()
        self._calls: dict[int, PendingCall] = {}
        self.raised: dict[int, BaseException] = {}  # by functions that the worker asked for, by the id of the request
        self.numbers = itertools.count(1)
        self.tasks: queue.SimpleQueue[frames.Run | None] = queue.SimpleQueue()
        self.on_execute: Callable[[frames.Execute], None] = lambda _: None
        self.on_stop: Callable[[BaseException], None] = lambda _: None
        self.describe_stack: Callable[[], str] = str
        self._reader = threading.Thread(target=self._read, name="penstock-frames", daemon=True)

    def start(self) -> None:
        self._reader.start()

    def send(self, frame: frames.HandlerFrame) -> None:
        """Send a frame. Raise PayloadTooLarge if it is larger than a frame may be."""
        data = encode_frame(frame) + b"\n"
        if len(data) > self._max_bytes:
            raise PayloadTooLarge(
                f"a {type(frame).__name__.lower()} frame has {len(data):,} bytes; the limit is {self._max_bytes:,}. "
                "Store large data elsewhere and pass a reference"
            )
        with self._lock:
            self._socket.sendall(data)

    def call(self, request: frames.Request, site: str | None = None, branch: bool = False) -> PendingCall:
        """Send a request; its answer arrives in the returned call."""
        call = PendingCall(next(self.numbers))
        self._calls[call.id] = call
        self.send(frames.Call(call.id, request, site, branch))
        return call

    def stop_calls(self, stop: BaseException) -> None:
        """End every call without an answer with an exception."""
        for call in list(self._calls.values()):
            call.fail(stop)
        self._calls.clear()

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    self._take(decode_worker_frame(line))
        finally:
            # The worker is gone, or speaks another protocol: nothing of this process may outlive it.
            end_group()

    def _to_exception(self, error: frames.ErrorFrame, answer: int) -> BaseException:
        """Return the exception of an answer: the one that a function of the handler raised, or one like it."""
        original = self.raised.get(error.executed) if error.executed is not None else None
        problem = original if original is not None else to_exception(error)
        problem.__dict__["answer"] = answer  # when it leaves the handler, the worker finds its own again
        return problem

    def _take(self, frame: frames.WorkerFrame) -> None:
        match frame:
            case frames.Run():
                self.tasks.put(frame)
            case frames.Answer(id, value, error):
                call = self._calls.pop(id, None)
                if call is not None and error is None:
                    call.resolve(value)
                elif call is not None and error is not None:
                    call.fail(self._to_exception(error, id))
            case frames.Execute():
                self.on_execute(frame)
            case frames.Suspend():
                self.on_stop(Suspension("the handler waits"))
            case frames.Cancel(reason):
                self.on_stop(AttemptCancelled(reason))
            case frames.Ping():
                self.send(frames.Heartbeat(read_rss_mb()))
            case frames.Inspect(id):
                self.send(frames.Inspected(id, self.describe_stack(), read_rss_mb()))


class PendingCall:
    """A call whose answer the worker has not sent yet."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.future: Future[Any] = Future()

    def resolve(self, value: Any) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, problem: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(problem)


def end_group() -> None:
    """Kill this process and all processes it has started, unless they have left its group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def read_rss_mb() -> float:
    """Return the memory that this process uses, in MB; 0 if the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return round(int(file.read().split()[1]) * PAGE_MB, 1)
    except (OSError, IndexError, ValueError):
        return 0.0


def to_exception(error: frames.ErrorFrame) -> BaseException:
    """Return the exception that a frame stands for."""
    kind = getattr(errors, error.name, None)
    problem: BaseException = RuntimeError(error.message)
    if isinstance(kind, type) and issubclass(kind, PenstockError):
        problem = kind.__new__(kind)
        problem.args = (error.message,)
    if error.failure is not None:
        problem.failure = ChildFailure(**error.failure)  # type: ignore[attr-defined]
    if error.code is not None and getattr(problem, "code", None) is None:
        problem.code = error.code  # type: ignore[attr-defined]
    return problem


def find_site() -> str:
    """Return `file:line` of the handler's code that makes a call."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
