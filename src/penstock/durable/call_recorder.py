"""The call recorder: makes the durable calls of one attempt, one at a time, and records each once."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from ..core.durations import Duration, to_ms
from ..core.errors import (
    BadArgument,
    CallFailed,
    ConcurrentDurableCall,
    NonDeterminism,
    ReplayError,
    SuspendSwallowed,
    Suspension,
)
from ..core.ids import uuid7
from ..core.payload import unpack
from ..core.retry import RetryOption, RetryPolicy
from .calls import CallOutcome, DurableCall, RunCall, WaitCall, check_run_arguments, mark_shared_kinds
from .first import FirstCall, run_until_first
from .journal import Journal, JournalCall, JournalEntry

T = TypeVar("T")


class CallSession(Protocol):
    """The attempt, as durable calls see it."""

    @property
    def journal(self) -> Journal: ...

    @property
    def now_ms(self) -> int:
        """The time, never earlier than the claim."""
        ...

    @property
    def rng(self) -> random.Random: ...

    def check(self) -> None:
        """Raise ContextClosed once the attempt is over."""
        ...

    async def flush(self) -> None:
        """Commit the journal's writes now."""
        ...

    def begin(self, call: JournalCall) -> None:
        """Take note that a call without a record is about to do its work."""
        ...

    def suspend(self, waits: Sequence[WaitCall[Any]]) -> Suspension:
        """Return the exception that leaves the handler until one of these waits is over."""
        ...


class CallRecorder:
    """The durable calls of one attempt, one at a time."""

    def __init__(self, session: CallSession) -> None:
        self._session = session
        self._current: str | None = None  # the call in progress
        self._caller: object = None
        self._suspended_on: str | None = None
        self._token_issuers: list[Callable[[], None]] = []  # of pending triggers that an earlier attempt registered
        self._reached_ms = 0  # a due time that has passed, even if the clock was set back or stands still in a test

    @property
    def rng(self) -> random.Random:
        return self._session.rng

    @property
    def now_ms(self) -> int:
        return max(self._session.now_ms, self._reached_ms)

    @property
    def journal(self) -> Journal:
        return self._session.journal

    def next_call(self, name: str, kind: str) -> JournalCall:
        """Return the journal's next call with this name."""
        if name == kind:  # a default name: calls of that kind are identified by their order
            return self.next_call_by_order(name, kind)
        self._check_caller()
        return self.journal.next_call(name, kind)

    def next_call_by_order(self, name: str, kind: str) -> JournalCall:
        """Return the journal's next call with this name; several places in the code may use the name."""
        self._check_caller()
        return self.journal.next_call_by_order(name, kind)

    def begin(self, call: JournalCall) -> None:
        """Take note that a call without a record is about to do its work. A replay check ends the attempt here."""
        self._session.begin(call)

    def record(self, call: JournalCall, value: Any, error: str | None = None) -> JournalEntry:
        """Record a call's value, or its final error, with the next commit."""
        return self.journal.record(call, value, error=error)

    async def flush(self) -> None:
        """Commit the journal's writes now."""
        await self._session.flush()

    def add_token_issuer(self, issue: Callable[[], None]) -> None:
        """Call `issue` before the next function of a `ctx.run`: the function may send the token to someone."""
        self._token_issuers.append(issue)

    async def flush_urgent(self) -> None:
        """Commit the journal's writes now if the function that runs next must not run without them."""
        while self._token_issuers:
            self._token_issuers.pop()()
        if self.journal.is_urgent:
            await self._session.flush()

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
        return RunCall(self, call, lambda: fn(*args, **kwargs), RetryPolicy.parse(retry), limit_s)

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
        """Return the value of one call, or suspend the handler until it is there."""
        call.awaited = True
        self._enter(call.name)
        try:
            await call.start()
            if call.is_done():
                return call.result()
            raise self.suspend([call])
        finally:
            self._current = None

    async def await_all(self, calls: Sequence[DurableCall[Any]]) -> list[Any]:
        """Return every value in order, or suspend the handler until the last one is there."""
        self._check_calls("ctx.all", calls)
        with self.exclusive("ctx.all"):
            await self.start_calls(calls)
            pending = [call for call in calls if not call.is_done()]
            if pending:
                raise self.suspend(pending)
            return [call.result() for call in calls]

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
        with self.exclusive("ctx.first"):
            recorded = call.entry
            won = (
                await FirstCall(self, calls, call).find_winner() if recorded is None else unpack(bytes(recorded.value))
            )
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
            self._reached_ms = max(self._reached_ms, due)
        return ended

    async def start_calls(self, calls: Sequence[DurableCall[Any]]) -> None:
        """Start calls concurrently. A CallFailed is recorded, and raised by `result`."""
        await self.flush_urgent()
        results = await asyncio.gather(*(call.start() for call in calls), return_exceptions=True)
        for problem in results:
            if isinstance(problem, BaseException) and not isinstance(problem, CallFailed):
                raise problem

    def suspend(self, pending: Sequence[DurableCall[Any]]) -> Suspension:
        """Return the exception that leaves the handler until one of these calls is done."""
        waits = [call for call in pending if isinstance(call, WaitCall)]
        self.journal.check_skipped_waits()
        suspension = self._session.suspend(waits)
        self._suspended_on = ", ".join(wait.name for wait in waits)
        return suspension

    # One call at a time

    @contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """Refuse other durable calls inside the block."""
        self._enter(name)
        try:
            yield
        finally:
            self._current = None

    def _enter(self, name: str) -> None:
        """Raise if another call is in progress: a replay might record the two in another order."""
        self._session.check()
        if self._suspended_on is not None:
            raise self._call_after_suspend(_current_caller())
        if self._current is not None:
            raise self.journal.make_error(
                ConcurrentDurableCall,
                f"{name} was started while {self._current} was still running. Await durable calls one at a time, "
                "or use ctx.all([...]) or ctx.first({...}); they cannot run in asyncio.gather, in a task, or "
                "inside a function passed to ctx.run",
            )
        self._current = name

    def _check_caller(self) -> None:
        self._session.check()
        caller = _current_caller()
        if self._suspended_on is not None:
            raise self._call_after_suspend(caller)
        self._caller = caller

    def _call_after_suspend(self, caller: object) -> ReplayError:
        if caller == self._caller:
            return self.journal.make_error(
                SuspendSwallowed,
                f"a durable call was made after {self._suspended_on} had suspended the handler. Catch Exception, "
                "not BaseException, and make no durable calls in a finally block around a wait",
            )
        return self.journal.make_error(
            ConcurrentDurableCall,
            f"a durable call was made while {self._suspended_on} was waiting. Use ctx.all([...]) or "
            "ctx.first({...}); durable calls cannot run in asyncio.gather, in a task or in a thread",
        )

    def _check_calls(self, function: str, calls: Sequence[Any]) -> None:
        for call in calls:
            if not isinstance(call, DurableCall):
                raise TypeError(
                    f"{function} requires durable calls that are not awaited yet, got a {type(call).__name__}. "
                    "Pass calls such as ctx.wait.event(…), ctx.wait.time(…), t.wait() or ctx.run(…); in a `def` "
                    "handler, ctx.branch.event(…) or ctx.branch.run(…)"
                )
            call.awaited = True


def _current_caller() -> object:
    """Return who makes the call: the task, or the thread of a `def` handler."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.get_ident()
