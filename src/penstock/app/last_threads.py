"""Threads for an event loop that may still be needed when the interpreter ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class LastThreads(ThreadPoolExecutor):
    """A pool with one thread more for the end: by the time `atexit` calls anyone, a pool takes nothing any more, and
    from Python 3.12 on no thread can be started. Closing a store needs one."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="penstock-sync")
        self._left: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._main, name="penstock-last", daemon=True).start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            future: Future[T] = Future()
            self._left.put(lambda: _run(future, fn, *args, **kwargs))
            return future

    def end(self) -> None:
        """Lets every thread go."""
        self._left.put(None)
        self.shutdown(wait=False)

    def _main(self) -> None:
        while (work := self._left.get()) is not None:
            work()


def _run(future: Future[Any], fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as problem:
            future.set_exception(problem)
