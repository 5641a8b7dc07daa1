"""The call recorder: makes the durable calls of one attempt and records each once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Token
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, TypeVar

from ..core.durations import Duration, to_ms
from ..core.errors import (
    AttemptCancelled,
    BadArgument,
    CallFailed,
    ConcurrentDurableCall,
    NonDeterminism,
    SuspendSwallowed,
    Suspension,
)
from ..core.ids import uuid7
from ..core.payload import unpack
from ..core.retry import RetryOption, RetryPolicy
from ..core.text import shorten
from .branches import Branches, BranchSession
from .call_events import CallEvents, CallEventSession, CallTimer
from .calls import (
    CallOutcome,
    DurableCall,
    RunCall,
    WaitCall,
    check_run_arguments,
    mark_shared_kinds,
    running_function,
)
from .first import FirstCall, run_until_first
from .journal import JournalCall, JournalEntry

T = TypeVar("T")
VALUES = ("now", "uuid", "random")
_TRY_ONCE = RetryPolicy.parse(None)


class CallSession(CallEventSession, BranchSession, Protocol):
    """The attempt, as durable calls see it."""

    @property
    def rng(self) -> random.Random: ...

    def check(self) -> None:
        """Raise ContextClosed once the attempt is over."""
        ...

    def note_caller(self) -> None:
        """Take note of a call that another task or thread than the handler's own makes."""
        ...

    def flush(self) -> Coroutine[Any, Any, None]:
        """Commit the journal's writes now."""
        ...

    @property
    def is_flushing(self) -> bool:
        """Whether another branch is committing something that a function must not run without."""
        ...

    async def wait_for_urgent(self) -> None:
        """Wait until that is committed."""
        ...

    def begin(self, call: JournalCall) -> None:
        """Take note that a call without a record is about to do its work."""
        ...

    def suspend(self, waits: Sequence[WaitCall[Any]]) -> Suspension:
        """Return the exception that leaves the handler until one of these waits is over."""
        ...


class CallRecorder:
    """The durable calls of one attempt."""

    def __init__(self, session: CallSession) -> None:
        self._session = session
        self.journal = session.journal
        self.begin = session.begin  # take note that a call without a record is about to do its work
        self.events = CallEvents(session)
        self.branches = Branches(session, self.suspend, self.flush)
        self._suspended_on: str | None = None
        self._token_issuers: list[Callable[[], None]] = []  # of pending triggers that an earlier attempt registered

    @property
    def rng(self) -> random.Random:
        return self._session.rng

    @property
    def now_ms(self) -> int:
        return max(self._session.now_ms, self.branches.reached_ms)

    def next_call(self, name: str, kind: str) -> JournalCall:
        """Return the journal's next call with this name."""
        self._session.note_caller()
        if name == kind:  # a default name: calls of that kind are identified by their order
            return self.next_call_by_order(name, kind)
        self._check_caller(name)
        return self.journal.next_call(name, kind)

    def next_call_by_order(self, name: str, kind: str) -> JournalCall:
        """Return the journal's next call with this name; several places in the code may use the name."""
        self._session.note_caller()
        if kind not in VALUES:  # these have no effect, and may be called anywhere
            self._check_caller(name)
        else:
            self._session.check()
        return self.journal.next_call_by_order(name, kind)

    def record(self, call: JournalCall, value: Any, error: str | None = None) -> JournalEntry:
        """Record a call's value, or its final error, with the next commit."""
        return self.journal.record(call, value, error=error)

    def record_value(self, call: JournalCall, timer: CallTimer, value: Any) -> JournalEntry:
        """Record the value of a function, with its event, with the next commit."""
        entry = self.record(call, value)
        self.events.complete(timer, len(entry.value))
        return entry

    def record_failure(self, call: JournalCall, timer: CallTimer, problem: CallFailed) -> JournalEntry:
        """Record the final failure of a function, with its event, with the next commit."""
        self.events.fail(timer, problem.__cause__ or problem)
        return self.record(call, None, str(problem))

    def flush(self) -> Coroutine[Any, Any, None]:
        """Commit the journal's writes now."""
        self.events.add_started()
        return self._flush_branch() if self.journal.is_concurrent else self._session.flush()

    async def _flush_branch(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.branches.committing.add(task)  # the end of the handler waits for it
        try:
            await self._session.flush()
        finally:
            self.branches.committing.discard(task)

    def enter_function(self, key: str) -> Token[tuple[object, str] | None]:
        """Refuse durable calls in the function of a `ctx.run`, and in what it starts, until `leave_function`."""
        return running_function.set((self, key))

    def close(self) -> None:
        """Stop what runs on its own."""
        self.events.close()
        self.branches.dispose()

    def add_token_issuer(self, issue: Callable[[], None]) -> None:
        """Call `issue` before the next function of a `ctx.run`: the function may send the token to someone."""
        self._token_issuers.append(issue)

    @property
    def is_urgent(self) -> bool:
        """Whether something must be committed before a function runs."""
        return self.journal.is_urgent or bool(self._token_issuers) or self._session.is_flushing

    async def flush_urgent(self) -> None:
        """Commit the journal's writes now if the function that runs next must not run without them."""
        while self._token_issuers:
            self._token_issuers.pop()()
        if self.journal.is_urgent:
            await self.flush()
        elif self._session.is_flushing:
            await self._session.wait_for_urgent()

    async def sleep(self, ms: int) -> None:
        """Sleep between two tries of a `ctx.run`. Tests skip the time."""
        await asyncio.sleep(ms / 1000)

    def sleep_thread(self, ms: int) -> None:
        """Sleep on the thread of a `def` handler."""
        time.sleep(ms / 1000)

    # What `ctx` calls

    def run(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        retry: RetryOption | None,
        timeout: Duration | None,
    ) -> RunCall:
        """Build the call of a `ctx.run`."""
        limit_s = to_ms(timeout) / 1000 if timeout is not None else None
        check_run_arguments(name, fn)
        call = self.next_call(name, "run")
        policy = RetryPolicy.parse(retry) if retry is not None else _TRY_ONCE
        return RunCall(self, call, partial(fn, *args, **kwargs), policy, limit_s)

    def now(self) -> datetime:
        """Return the recorded time."""
        ms = self._record_value("now", lambda: self.now_ms)
        return datetime.fromtimestamp(ms / 1000, UTC)

    def uuid(self) -> str:
        """Return a recorded UUIDv7."""
        return str(self._record_value("uuid", lambda: uuid7(self.now_ms)))

    def random(self) -> float:
        """Return a recorded random number."""
        return float(self._record_value("random", self.rng.random))

    def _record_value(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the recorded value, or make one and record it with the next commit."""
        call = self.next_call_by_order(name, name)
        entry = call.entry or self.record(call, make())
        return unpack(bytes(entry.value))

    async def await_call(self, call: DurableCall[T]) -> T:
        """Return the value of one call. Park its branch, or suspend the handler, until it is there."""
        call.awaited = True
        self._enter()
        branches = self.branches
        branches.active += 1
        try:
            while True:
                await call.start()
                if call.is_done():
                    return call.result()
                await self.park([call])
        except (Suspension, AttemptCancelled) as stop:
            if not branches.holds(stop):
                raise
            problem = stop.with_traceback(None)
        finally:
            branches.finish_call()
        return await branches.stop(problem)

    async def await_all(self, calls: Sequence[DurableCall[Any]]) -> list[Any]:
        """Return every value in order, once the last one is there."""
        self._check_calls("ctx.all", calls)
        return await self.work(self._await_all(calls))

    async def _await_all(self, calls: Sequence[DurableCall[Any]]) -> list[Any]:
        while True:
            await self.start_calls(calls)
            pending = [call for call in calls if not call.is_done()]
            if not pending:
                return [call.result() for call in calls]
            await self.park(pending)

    async def await_first(self, calls: Mapping[str, DurableCall[Any]], call: JournalCall) -> tuple[str, Any]:
        """Return the name and the value of the first call that is done; cancel the other waits."""
        if not isinstance(calls, Mapping):
            raise BadArgument(
                'ctx.first requires a mapping of names to calls, such as {"paid": '
                f'ctx.wait.event("order.paid"), "late": ctx.wait.time("1d")}}, got a {type(calls).__name__}'
            )
        self._check_calls("ctx.first", list(calls.values()))
        if not calls:
            raise BadArgument("ctx.first requires at least one call, got an empty mapping")
        return await self.work(self._await_first(calls, call))

    async def _await_first(self, calls: Mapping[str, DurableCall[Any]], call: JournalCall) -> tuple[str, Any]:
        recorded = call.entry
        won = await FirstCall(self, calls, call).find_winner() if recorded is None else unpack(bytes(recorded.value))
        if won not in calls or not calls[won].is_done():
            raise self.journal.make_error(
                NonDeterminism,
                f"an earlier attempt recorded {won!r} as the winner of {call.key}, but this ctx.first has the "
                f"calls {', '.join(calls)} now. If you change a ctx.first, pass a new name=",
            )
        return won, calls[won].result()

    # What `ctx.first` needs

    async def register_waits(self, waits: Sequence[WaitCall[Any]]) -> None:
        """Commit waits before functions run: a crash does not restart their times, and events find them."""
        mark_shared_kinds(waits)
        for wait in waits:
            wait.register()
        await self.flush()

    async def run_until(self, due: int | None, runs: Mapping[str, RunCall]) -> dict[str, CallOutcome]:
        """Run functions and return the outcomes of those that ended first; none if `due` came before."""
        seconds = max(due - self.now_ms, 0) / 1000 if due is not None else None
        ended = await run_until_first({key: run.run_unrecorded for key, run in runs.items()}, seconds)
        if not ended and due is not None:
            self.branches.reached_ms = max(self.branches.reached_ms, due)
        return ended

    async def start_calls(self, calls: Sequence[DurableCall[Any]]) -> None:
        """Start calls concurrently. A CallFailed is recorded, and raised by `result`."""
        await self.flush_urgent()
        results = await asyncio.gather(*(call.start() for call in calls), return_exceptions=True)
        for problem in results:
            if isinstance(problem, BaseException) and not isinstance(problem, CallFailed):
                raise problem

    async def park(self, pending: Sequence[DurableCall[Any]]) -> None:
        """Wait until one of these calls may be done. The handler is left when all its branches wait."""
        waits = [call for call in pending if isinstance(call, WaitCall)]
        self.branches.active -= 1
        try:
            await self.branches.park(waits)
        finally:
            self.branches.active += 1

    def suspend(self, waits: Sequence[WaitCall[Any]]) -> Suspension:
        """Return the exception that leaves the handler until one of these waits is over."""
        self.journal.check_skipped_waits()
        suspension = self._session.suspend(waits)
        self._suspended_on = ", ".join(wait.name for wait in waits)
        return suspension

    # Where a call may be made

    async def work(self, call: Coroutine[Any, Any, T]) -> T:
        """Make a call that is more than one durable call, or none: its branch is not blocked meanwhile."""
        try:
            self._enter()
        except BaseException:
            call.close()
            raise
        self.branches.active += 1
        try:
            return await call
        except (Suspension, AttemptCancelled) as stop:
            if not self.branches.holds(stop):
                raise
            problem = stop.with_traceback(None)
        finally:
            self.branches.finish_call()
        return await self.branches.stop(problem)

    def _enter(self) -> None:
        self._session.check()
        if self._suspended_on is not None:
            raise self._call_after_suspend()
        self.branches.enter()

    @property
    def has_suspended(self) -> bool:
        """Whether the handler is being left for a wait."""
        return self._suspended_on is not None

    def _check_caller(self, name: str) -> None:
        """Raise if no durable call may be made here."""
        self._session.check()
        if self._suspended_on is not None:
            raise self._call_after_suspend()
        running = running_function.get()
        if running is not None and running[0] is self:
            raise self.journal.make_error(
                ConcurrentDurableCall,
                f"{name} was called inside the function of {running[1]}. A replay skips that function, so the call "
                "would be lost. Make durable calls in the handler, or in a function that the handler awaits directly",
            )

    def _call_after_suspend(self) -> BaseException:
        main = self._session.handler_task
        if main is not None and asyncio.current_task() is not main:
            return asyncio.CancelledError("the handler waits")
        return self.journal.make_error(
            SuspendSwallowed,
            f"a durable call was made after {self._suspended_on} had suspended the handler. Catch Exception, "
            "not BaseException or asyncio.CancelledError, and make no durable calls in a finally block around a wait",
        )

    def _check_calls(self, function: str, calls: Any) -> None:
        if not isinstance(calls, Sequence):
            raise BadArgument(f"{function} requires a list of durable calls, got {shorten(calls)}")
        for call in calls:
            if not isinstance(call, DurableCall):
                raise BadArgument(
                    f"{function} requires durable calls, got a {type(call).__name__}. Pass each call without "
                    "`await`, such as ctx.run(…) or ctx.wait.event(…). In a `def` handler, pass ctx.branch.run(…) or "
                    "ctx.branch.event(…)"
                )
            call.awaited = True
