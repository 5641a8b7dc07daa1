"""Branches of a handler: concurrent durable calls, in tasks of its own, on threads, or in another process.

A branch whose wait is not over is parked. The step suspends when every branch is blocked: functions that run end first,
and are recorded. Until then a parked wait is registered in the store, so that nothing that resolves it is missed, and a
branch continues here when its time comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, Protocol

from ..core.errors import AttemptCancelled, ReplayError, StoreError, Suspension
from .calls import WaitCall, mark_shared_kinds
from .journal import Journal
from .task_graph import Activity, find_activity

OUTDATED = "a wait was resolved while the step was suspending"
BUSY_LIMIT_S = 30.0  # how long other branches may do something that is no durable call before the step suspends anyway
RECHECK_S = (0.01, 1.0)  # first and longest pause between two looks at busy branches
END_TIMEOUT_S = 5.0  # how long branches may take to end when their handler has ended


class BranchSession(Protocol):
    """The attempt, as its branches see it."""

    @property
    def journal(self) -> Journal: ...

    @property
    def now_ms(self) -> int: ...

    @property
    def handler_task(self) -> asyncio.Task[Any] | None:
        """The task of an `async def` handler in this process; None for any other."""
        ...

    @property
    def max_calls(self) -> int:
        """How many functions run at once."""
        ...

    async def register_wait(self, wait: WaitCall[Any]) -> None:
        """Commit a wait while other branches go on."""
        ...

    def leave(self, stop: BaseException) -> None:
        """Cancel the handler's task. The attempt ends with `stop`."""
        ...


class Branches:
    """The branches of one attempt."""

    def __init__(
        self,
        session: BranchSession,
        suspend: Callable[[Sequence[WaitCall[Any]]], Suspension],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self.active = 0  # calls that do something now: they run a function, or commit
        self.is_over = False
        self.host_is_blocked: bool | None = None  # of a handler in another process that makes concurrent calls
        self.committing: set[asyncio.Task[Any]] = set()  # those that record a result
        self.reached_ms = 0  # a due time that has passed, even if the clock was set back or stands still in a test
        self._session = session
        self._suspend = suspend
        self._flush = flush
        self._tasks: set[asyncio.Task[Any]] = set()  # branches besides the handler's own task
        self._parked: dict[asyncio.Future[None], Sequence[WaitCall[Any]]] = {}
        self._registered: set[str] = set()
        self._registering: asyncio.Task[None] | None = None
        self._check: asyncio.Handle | None = None
        self._outdated: BaseException | None = None  # a wait was resolved meanwhile: the handler must run again
        self._busy_since: float | None = None
        self._running = 0
        self._queue: list[asyncio.Future[None]] = []  # functions that wait until fewer run

    def enter(self) -> None:
        """Take note of the task that makes a call. End a task that outlived its handler."""
        main = self._session.handler_task
        if main is None:
            return
        task = asyncio.current_task()
        self._busy_since = None
        if task is main or task is None:
            return
        if self.is_over:
            raise asyncio.CancelledError("the handler has ended, or waits")
        if task not in self._tasks:
            self._session.journal.is_concurrent = True
            self._tasks.add(task)
            task.add_done_callback(self._on_task_end)

    def set_host_blocked(self, is_blocked: bool) -> None:
        """Take note whether every branch of a handler in another process waits for an answer."""
        self.host_is_blocked = is_blocked
        self._busy_since = None
        if not is_blocked:
            self._session.journal.is_concurrent = True
        elif self._parked:
            self._check_soon()

    @property
    def is_branch(self) -> bool:
        """Whether the calling task is a branch, not the handler's own task."""
        return bool(self._tasks) and asyncio.current_task() in self._tasks

    def finish_call(self) -> None:
        """Take note that a call has done its work."""
        self.active -= 1
        if self._parked:
            self._check_soon()

    # How many functions run at once

    def try_acquire(self) -> bool:
        """Return whether another function may run now, and count it."""
        if self._running >= self._session.max_calls:
            return False
        self._running += 1
        return True

    async def acquire(self) -> None:
        """Wait until another function may run."""
        if self.try_acquire():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Let the next function run."""
        while self._queue:
            turn = self._queue.pop(0)
            if not turn.done():
                turn.set_result(None)
                return
        self._running -= 1

    # Waits

    async def park(self, waits: Sequence[WaitCall[Any]]) -> None:
        """Return when one of these waits is due; leave the handler when every branch is blocked.

        The caller is not `active` meanwhile."""
        if self._is_alone():
            main = self._session.handler_task
            if main is not None:
                await asyncio.sleep(0)  # a task that was just created makes its first call
            if self._is_alone():
                self.is_over = True
                raise self._suspend(waits)
        await self._wait_here(waits)

    def holds(self, stop: BaseException) -> bool:
        """Return whether the calling task must wait with `stop`, because it is a branch or others go on."""
        if not self._tasks and self.active <= 1:  # the caller is active
            return False
        return self.is_branch or (not self.is_over and _is_gentle(stop))

    async def stop(self, stop: BaseException) -> NoReturn:
        """End the attempt from a branch: leave the handler's task, at once or when every branch is blocked."""
        if _is_gentle(stop) and not self.is_over:
            # The functions of the other branches end first, and a replay check goes on in them.
            self._outdated = stop if isinstance(stop, AttemptCancelled) else self._outdated
            await self._wait_here([])
        self._leave(stop)
        await asyncio.get_running_loop().create_future()  # until it is cancelled
        raise stop

    def _is_alone(self) -> bool:
        if self.active or self._parked or self._tasks or self.host_is_blocked is False:
            return False
        main = self._session.handler_task
        return main is None or asyncio.current_task() is main

    async def _wait_here(self, waits: Sequence[WaitCall[Any]]) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        due = min((wait.due for wait in waits if wait.due is not None), default=None)
        alarm = None
        if due is not None:
            alarm = loop.call_later(max(due - self._session.now_ms, 0) / 1000, self._on_due, future, due)
        self._session.journal.is_concurrent = True
        self._parked[future] = waits
        self._check_soon()
        try:
            await future
        finally:
            self._parked.pop(future, None)
            if alarm is not None:
                alarm.cancel()

    def _on_due(self, future: asyncio.Future[None], due: int) -> None:
        if not future.done() and not self.is_over:
            self.reached_ms = max(self.reached_ms, due)
            future.set_result(None)

    def _on_task_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self._parked:
            self._check_soon()

    def _check_soon(self) -> None:
        if self._check is not None:
            self._check.cancel()
        self._check = asyncio.get_running_loop().call_soon(self._suspend_if_blocked)

    def _suspend_if_blocked(self, pause_s: float = RECHECK_S[0], is_sure: bool = False) -> None:
        self._check = None
        if self.is_over or not self._parked or any(future.done() for future in self._parked):
            return
        loop, activity = asyncio.get_running_loop(), self._find_activity()
        if activity is Activity.RUNNABLE:
            self._check = loop.call_soon(self._suspend_if_blocked)
        elif activity is Activity.BLOCKED and not is_sure:
            # A task may have ended just now, and the callback that wakes the task that awaits it comes next.
            self._check = loop.call_soon(self._suspend_if_blocked, pause_s, True)
        elif activity is Activity.BLOCKED or self._is_busy_too_long(loop.time()):
            self._suspend_all()
        else:
            self._register_waits()
            if not self.active:  # nothing of ours tells when the others are done
                self._check = loop.call_later(pause_s, self._suspend_if_blocked, min(2 * pause_s, RECHECK_S[1]))

    def _find_activity(self) -> Activity:
        main = self._session.handler_task
        if self.active or self._queue:
            return Activity.BUSY
        if main is None:
            return Activity.BUSY if self.host_is_blocked is False else Activity.BLOCKED
        return find_activity((main, *self._tasks), self._parked)

    def _is_busy_too_long(self, now: float) -> bool:
        if self.active:
            self._busy_since = None
            return False
        self._busy_since = self._busy_since or now
        return now - self._busy_since >= BUSY_LIMIT_S

    def _suspend_all(self) -> None:
        waits = [wait for parked in self._parked.values() for wait in parked]
        try:
            stop = self._outdated or self._suspend(waits)
        except ReplayError as problem:
            stop = problem
        self._leave(stop)

    def _leave(self, stop: BaseException) -> None:
        if self.is_over:
            return
        self.is_over = True
        if self._session.handler_task is not None:
            self._session.leave(stop)
            return
        for future in self._parked:  # one is enough: it ends the handler, wherever that runs
            if not future.done():
                future.set_exception(stop)
                return

    def _register_waits(self) -> None:
        """Commit parked waits while others go on: a crash does not restart their times, and events find them."""
        waits = [wait for parked in self._parked.values() for wait in parked]
        new = {wait.name for wait in waits} - self._registered
        if not new or self._registering is not None:
            return
        mark_shared_kinds(waits)
        kinds = {wait.event_kind for wait in waits if wait.name in new and wait.event_kind is not None}
        affected = [wait for wait in waits if wait.name in new or wait.event_kind in kinds]
        self._registered |= new
        self.active += 1
        commit = self._commit_waits(affected)
        self._registering = asyncio.get_running_loop().create_task(commit, name="penstock-register-waits")

    async def _commit_waits(self, waits: Sequence[WaitCall[Any]]) -> None:
        try:
            await self._flush()  # when they started
            await asyncio.gather(*(self._session.register_wait(wait) for wait in waits))
        except (AttemptCancelled, StoreError) as stop:
            self._leave(stop)
        finally:
            self._registering = None
            self.finish_call()

    # The end of the handler

    def dispose(self) -> None:
        """Drop what refers back, so that no garbage collection is needed."""
        del self._suspend, self._flush

    async def end(self) -> None:
        """End the tasks that the handler left behind. One that is recording a result does so first."""
        self.is_over = True
        if self._check is not None:
            self._check.cancel()
        left = {task for task in self._tasks if not task.done()}
        if self._registering is not None:
            left.add(self._registering)
            self.committing.add(self._registering)
        for task in left - self.committing:
            task.cancel()
        if left:
            _, left = await asyncio.wait(left, timeout=END_TIMEOUT_S)
        for task in left:
            task.cancel()


def _is_gentle(stop: BaseException) -> bool:
    """Return whether other branches may go on before the attempt ends with `stop`."""
    return isinstance(stop, Suspension) or (isinstance(stop, AttemptCancelled) and stop.reason == OUTDATED)
