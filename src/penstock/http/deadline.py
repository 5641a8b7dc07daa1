"""Timeouts of operations that are frequent and almost always end in time."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Deadline:
    """Raises TimeoutError in the task that made it when one of its operations takes too long.

        with deadline.within(30):
            await send(message)

    One timer serves all of them, and it is set again only when it fires: entering and leaving cost nothing, unlike
    `asyncio.timeout`, which adds and removes a timer each time. Operations must not overlap.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None  # of the operation that runs
        self._has_expired = False

    def within(self, seconds: float | None) -> Deadline:
        """Limit the operation that follows. None: no limit."""
        self._due = None if seconds is None else self._loop.time() + seconds
        if self._due is not None and self._timer is None:
            self._timer = self._loop.call_at(self._due, self._check)
        return self

    def close(self) -> None:
        """Remove the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._due = None
        if self._has_expired:
            self._has_expired = False
            # Cancelled by the deadline alone: by somebody else too, the task must end.
            if self._task.uncancel() == 0 and kind is asyncio.CancelledError:
                raise TimeoutError from problem

    def _check(self) -> None:
        self._timer = None
        if self._due is None:
            return  # the next operation sets the timer
        if self._loop.time() < self._due:
            self._timer = self._loop.call_at(self._due, self._check)
        else:
            self._has_expired = True
            self._task.cancel()  # it waits inside the operation
