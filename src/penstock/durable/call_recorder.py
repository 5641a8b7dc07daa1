"""The durable calls of one attempt: each recorded once, one at a time, whatever the handler does again."""

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
from ..core.retry import Retries, RetryPolicy
from .calls import CallOutcome, DurableCall, RunCall, WaitCall, check_run, tell_apart
from .first import FirstCall, side_by_side
from .journal import Journal, JournalCall, JournalEntry

T = TypeVar("T")


class CallSession(Protocol):
    """The attempt, as durable calls see it."""

    @property
    def journal(self) -> Journal: ...

    @property
    def now_ms(self) -> int:
        """The time, never before the one at which the store handed the job out."""
        ...

    @property
    def rng(self) -> random.Random: ...

    def check(self) -> None:
        """Raises ContextClosed once the attempt is over."""
        ...

    async def record(self) -> None:
        """Writes what the journal has kept, now."""
        ...

    def suspend(self, waiting: Sequence[WaitCall[Any]]) -> Suspension:
        """What to raise to leave the handler until one of these is open."""
        ...


class CallRecorder:
    """The durable calls of one attempt, one at a time."""

    def __init__(self, attempt: CallSession) -> None:
        self._attempt = attempt
        self._busy: str | None = None
        self._caller: object = None
        self._asleep: str | None = None
        self._reached = 0  # a moment that has come, though a clock was set back or stands still under test

    @property
    def rng(self) -> random.Random:
        return self._attempt.rng

    @property
    def now_ms(self) -> int:
        return max(self._attempt.now_ms, self._reached)

    @property
    def journal(self) -> Journal:
        return self._attempt.journal

    def call(self, name: str, kind: str) -> JournalCall:
        if name == kind:  # nobody has named it: calls of that kind are told apart by their order
            return self.call_anywhere(name, kind)
        self._check()
        return self.journal.call(name, kind)

    def call_anywhere(self, name: str, kind: str) -> JournalCall:
        """The same for calls that have no name of their own."""
        self._check()
        return self.journal.call_anywhere(name, kind)

    def _check(self) -> None:
        self._attempt.check()
        caller = _caller()
        if self._asleep is not None:
            raise self._went_on(caller)
        self._caller = caller

    def _went_on(self, caller: object) -> ReplayError:
        """What to raise when a durable call comes after one that has put the handler to sleep."""
        if caller == self._caller:
            return self.journal.broken(
                SuspendSwallowed,
                f"a durable call came after {self._asleep} had suspended the handler: catch Exception, not "
                "BaseException, and make no durable call in a finally block around a wait",
            )
        return self.journal.broken(
            ConcurrentDurableCall,
            f"a durable call was made beside {self._asleep}, which waits: hand them to ctx.all([...]) or "
            "ctx.first({...}), not to asyncio.gather, a task or a thread",
        )

    def keep(self, call: JournalCall, value: Any, error: str | None = None) -> JournalEntry:
        return self.journal.keep(call, value, error=error)

    async def flush(self) -> None:
        await self._attempt.record()

    async def flush_urgent(self) -> None:
        if self.journal.urgent:
            await self._attempt.record()

    async def pause(self, ms: int) -> None:
        """Between two tries of a `ctx.run`; under test, time is skipped."""
        await asyncio.sleep(ms / 1000)

    def pause_thread(self, ms: int) -> None:
        """The same on the thread of a `def` handler."""
        time.sleep(ms / 1000)

    # What a handler calls

    def run(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        retry: Retries | None,
        timeout: Duration | None,
    ) -> RunCall:
        limit = to_ms(timeout) / 1000 if timeout is not None else None
        check_run(name, fn)
        return RunCall(self, self.call(name, "run"), lambda: fn(*args, **kwargs), RetryPolicy.of(retry), limit)

    def now(self) -> datetime:
        ms = self._value("now", lambda: self.now_ms)
        return datetime.fromtimestamp(ms / 1000, UTC)

    def uuid(self) -> str:
        return str(self._value("uuid", lambda: uuid7(self.now_ms)))

    def random(self) -> float:
        return float(self._value("random", self.rng.random))

    def _value(self, name: str, make: Callable[[], Any]) -> Any:
        """A value that is recorded with the next commit. Its calls need no name: they are told apart by their order."""
        call = self.call_anywhere(name, name)
        entry = call.entry or self.keep(call, make())
        return unpack(bytes(entry.value))

    async def one(self, call: DurableCall[T]) -> T:
        call.awaited = True
        self._enter(call.name)
        try:
            await call.begin()
            if call.done():
                return call.result()
            raise self.sleep([call])
        finally:
            self._busy = None

    async def all(self, calls: Sequence[DurableCall[Any]]) -> list[Any]:
        """Every value, in order; goes to sleep until the last one is there."""
        self._check_calls("ctx.all", calls)
        with self.exclusive("ctx.all"):
            await self.begin(calls)
            waiting = [call for call in calls if not call.done()]
            if waiting:
                raise self.sleep(waiting)
            return [call.result() for call in calls]

    async def first_of(self, calls: Mapping[str, DurableCall[Any]], call: JournalCall) -> tuple[str, Any]:
        """The name and the value of whichever is there first; the other waits are let go."""
        if not isinstance(calls, Mapping):
            raise BadArgument(
                f"ctx.first was given a {type(calls).__name__}: give the calls names, such as "
                '{"paid": ctx.wait.event("order.paid"), "late": ctx.wait.time("1d")}'
            )
        self._check_calls("ctx.first", list(calls.values()))
        if not calls:
            raise BadArgument("ctx.first was given nothing to wait for: the step would sleep for ever")
        with self.exclusive("ctx.first"):
            won = (
                unpack(bytes(call.entry.value))
                if call.entry is not None
                else await FirstCall(self, calls, call).winner()
            )
            if won not in calls or not calls[won].done():
                raise self.journal.broken(
                    NonDeterminism,
                    f"{call.key} was recorded as won by {won!r}, which is not to be had among {', '.join(calls)} now: "
                    "give a ctx.first that has changed another name=",
                )
            return won, calls[won].result()

    async def watch(self, gates: Sequence[WaitCall[Any]]) -> None:
        """Written before functions run: a crash does not begin the times anew, and what comes finds its gate."""
        tell_apart(gates)
        for gate in gates:
            gate.watch()
        await self.flush()

    async def until(self, due: int | None, runs: Mapping[str, RunCall]) -> dict[str, CallOutcome]:
        """The functions that ended first; none if a moment came before."""
        seconds = max(due - self.now_ms, 0) / 1000 if due is not None else None
        ended = await side_by_side({key: run.outcome for key, run in runs.items()}, seconds)
        if not ended and due is not None:
            self._reached = max(self._reached, due)
        return ended

    async def begin(self, calls: Sequence[DurableCall[Any]]) -> None:
        await self.flush_urgent()
        results = await asyncio.gather(*(call.begin() for call in calls), return_exceptions=True)
        for problem in results:
            if isinstance(problem, BaseException) and not isinstance(problem, CallFailed):
                raise problem

    def _check_calls(self, what: str, calls: Sequence[Any]) -> None:
        for call in calls:
            if not isinstance(call, DurableCall):
                raise TypeError(
                    f"{what} was given a {type(call).__name__}: give it durable calls that are not awaited yet, such "
                    "as ctx.wait.event(…), ctx.wait.time(…), t.wait() or ctx.run(…); in a `def` handler, such as "
                    "ctx.branch.event(…) or ctx.branch.run(…)"
                )
            call.awaited = True

    def sleep(self, waiting: Sequence[DurableCall[Any]]) -> Suspension:
        gates = [call for call in waiting if isinstance(call, WaitCall)]
        self.journal.check_passed()
        suspension = self._attempt.suspend(gates)
        self._asleep = ", ".join(gate.name for gate in gates)
        return suspension

    @contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        self._enter(name)
        try:
            yield
        finally:
            self._busy = None

    def _enter(self, name: str) -> None:
        """Two durable calls at once would be recorded in an order that a re-run need not repeat."""
        self._attempt.check()
        if self._asleep is not None:
            raise self._went_on(_caller())
        if self._busy is not None:
            raise self.journal.broken(
                ConcurrentDurableCall,
                f"{name} began while {self._busy} was under way: await them in turn, or hand them to "
                "ctx.all([...]) or ctx.first({...}), not to asyncio.gather, a task or the function of a ctx.run",
            )
        self._busy = name


def _caller() -> object:
    """Who makes a call: the task, or the thread of a `def` handler."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.get_ident()
