"""A bounded pool of threads whose calls can be interrupted."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ..core.errors import AttemptCancelled


class ThreadCall:
    """A function call on a pool thread."""

    def __init__(self, fn: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.done: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        self._call: Callable[[], Any] = lambda: context.run(fn)
        self._loop = loop
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._reason: str | None = None

    def run(self) -> None:
        with self._lock:
            if self._reason is not None:
                self._settle(None, AttemptCancelled(self._reason))
                return
            self._thread = threading.get_ident()
        result: Any = None
        error: BaseException | None = None
        try:
            result = self._call()
        except BaseException as problem:
            error = problem
        with self._lock:
            self._thread = None
        self._settle(result, error)

    def current_traceback(self) -> TracebackType | None:
        """Return where the call is now, as the traceback of an exception raised there; None if it does not run."""
        frame = sys._current_frames().get(self._thread) if self._thread is not None else None
        found: TracebackType | None = None
        while frame is not None and frame.f_code is not ThreadCall.run.__code__:
            found = TracebackType(found, frame, frame.f_lasti, frame.f_lineno or 0)
            frame = frame.f_back
        return found if frame is not None else None  # else the thread has left the call meanwhile

    def interrupt(self, reason: str) -> None:
        """Raise AttemptCancelled in the thread at its next Python instruction. A call into C is not interrupted."""
        with self._lock:
            self._reason = reason
            if self._thread is not None:
                import ctypes  # only to interrupt a handler

                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(AttemptCancelled)
                )

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if isinstance(error, AttemptCancelled) and self._reason is not None:
            error = AttemptCancelled(self._reason)  # the interpreter raised the class without a reason
        try:
            self._loop.call_soon_threadsafe(_set, self.done, result, error)
        except RuntimeError:  # the loop closed before the thread was done
            pass


def _set(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError(f"the handler raised StopIteration: {error!r}"))
    else:
        future.set_exception(error)


class ThreadPool:
    """At most `size` threads, started when needed. Daemons: a stuck handler does not keep the process alive."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._calls: queue.SimpleQueue[ThreadCall | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._lock = threading.Lock()

    def submit(self, call: ThreadCall) -> None:
        with self._lock:
            self._calls.put(call)
            if self._idle < self._calls.qsize() and len(self._threads) < self._size:
                thread = threading.Thread(target=self._work, name=f"penstock-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            try:
                call = self._calls.get()
            finally:
                with self._lock:
                    self._idle -= 1
            if call is None:
                return
            try:
                call.run()
            except AttemptCancelled:  # an interrupt that arrived as the handler returned
                continue

    def close(self) -> None:
        for _ in self._threads:
            self._calls.put(None)
