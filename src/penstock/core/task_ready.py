"""Awaitables that `asyncio.create_task` takes: it refuses all that are no coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class TaskReady(Coroutine[Any, Any, T]):
    """An awaitable that `asyncio.create_task` and task groups take as they take a coroutine.

    Several tasks may run it: each has a coroutine of its own."""

    _running: dict[asyncio.Task[Any] | None, Coroutine[Any, Any, T]] | None = None

    def _open(self) -> Coroutine[Any, Any, T]:
        """Return a new coroutine that awaits it."""
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, T]:
        return self._open().__await__()

    def send(self, value: Any, /) -> Any:
        """Take the first or the next step of the current task."""
        return self._step("send", value)

    def throw(self, *error: Any) -> Any:
        """Raise an exception in the current task, such as a cancellation."""
        return self._step("throw", *error)

    def _step(self, how: str, *args: Any) -> Any:
        if self._running is None:
            self._running = {}
        task = asyncio.current_task()
        if (running := self._running.get(task)) is None:
            running = self._running[task] = self._open()
        try:
            return getattr(running, how)(*args)
        except BaseException:
            self._running.pop(task, None)  # it has ended, and may be awaited again
            raise

    def close(self) -> None:
        """End it without a result."""
        running, self._running = self._running or {}, None
        for one in running.values():
            one.close()

    def find_running(self, task: asyncio.Task[Any]) -> Coroutine[Any, Any, T] | None:
        """Return the coroutine of a task that runs it."""
        return (self._running or {}).get(task)
