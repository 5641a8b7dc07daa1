"""Durable calls: what a handler does once, however often it is run.

A call is an object that can be awaited, or handed to `ctx.all` and `ctx.first` with others.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

from ..core.durations import Duration, to_ms
from ..core.errors import (
    AttemptTimeout,
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
from .journal import Call, Entry, Journal
from .racing import Outcome, side_by_side
from .run_arguments import check_run

T = TypeVar("T")
log = logging.getLogger("penstock.worker")


class Recorder(Protocol):
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

    def suspend(self, waiting: Sequence[Gate[Any]]) -> Suspension:
        """What to raise to leave the handler until one of these is open."""
        ...


class Durable(Generic[T]):
    """A durable call that has not been awaited yet."""

    def __init__(self, calls: Durables, name: str) -> None:
        self.name = name
        self.awaited = False
        self._calls = calls

    def __del__(self) -> None:
        if not getattr(self, "awaited", True):
            whose = self._calls.journal.about
            log.warning("%s: %s was never awaited, so it did nothing: write `await` before it", whose, self.name)

    def __await__(self) -> Generator[Any, None, T]:
        return self._calls.one(self).__await__()

    async def begin(self) -> None:
        """Does what there is to do; a gate only looks whether it is open."""

    def done(self) -> bool:
        raise NotImplementedError

    def result(self) -> T:
        """The value, or the recorded error raised, once it is done."""
        raise NotImplementedError


class Gate(Durable[T]):
    """A call that waits for something outside; see waits."""

    topic: str | None = None  # the kind of event that opens it
    shared = False  # another gate that is held with it has the same topic

    @property
    def due(self) -> int | None:
        """When it opens by itself, or gives up."""
        raise NotImplementedError

    @property
    def opened_at(self) -> int:
        """When it was opened, once it is done; the first one wins."""
        raise NotImplementedError

    def hold(self) -> None:
        """Keeps what must be written for the handler to sleep on it."""
        raise NotImplementedError

    def watch(self) -> None:
        """Keeps what must be written for it to be opened while functions run beside it."""

    def let_go(self) -> None:
        """Another gate won."""
        raise NotImplementedError

    def forgo(self) -> None:
        """The same after it was watched: the unit is refused if it was opened meanwhile, so the earlier one wins."""
        self.let_go()


class RunCall(Durable[Any]):
    """`ctx.run`: a function called once; its value is recorded before the handler goes on."""

    def __init__(
        self, calls: Durables, call: Call, fn: Callable[[], Any], retry: RetryPolicy, timeout: float | None
    ) -> None:
        super().__init__(calls, call.key)
        self._call = call
        self._entry = call.entry
        self._fn = fn
        self._retry = retry
        self._timeout = timeout

    def done(self) -> bool:
        return self._entry is not None

    def result(self) -> Any:
        assert self._entry is not None
        return value_of(self._entry)

    async def begin(self) -> None:
        if self._entry is None:
            await self._calls.flush_urgent()
            try:
                value = await self._tried()
            except CallFailed as problem:
                self._entry = self._calls.keep(self._call, None, str(problem))
                await self._calls.flush()
                raise
            self._entry = self._calls.keep(self._call, value)
            await self._calls.flush()

    async def outcome(self) -> Outcome:
        """Calls the function and records nothing: it may yet lose."""
        try:
            value = await self._tried()
        except Exception as problem:
            return Outcome(self._calls.now_ms, failure=problem)
        return Outcome(self._calls.now_ms, value)

    def take(self, outcome: Outcome) -> None:
        """Keeps how the function ended; a failure that is the step's own is raised."""
        if outcome.failure is not None and not isinstance(outcome.failure, CallFailed):
            raise outcome.failure
        error = str(outcome.failure) if outcome.failure is not None else None
        self._entry = self._calls.keep(self._call, outcome.value, error)

    async def _tried(self) -> Any:
        failures = 0
        while True:
            try:
                return await self._once()
            except ReplayError:
                raise
            except Exception as problem:
                failures += 1
                if self._retry.attempts == 1:
                    raise  # the step's own policy decides, and the call is made again with it
                delay = self._retry.next_delay_ms(problem, failures, self._calls.rng)
                if delay is None:
                    message = f"{self.name} failed for good after {failures} tries: {type(problem).__name__}: {problem}"
                    raise CallFailed(message) from problem
            await self._calls.pause(delay)

    async def _once(self) -> Any:
        try:
            async with asyncio.timeout(self._timeout) as limit:
                value = self._fn()
                return await value if inspect.isawaitable(value) else value
        except TimeoutError:
            if not limit.expired():
                raise
            raise AttemptTimeout(f"{self.name} ran longer than its timeout of {self._timeout:g} s") from None


def value_of(entry: Entry) -> Any:
    """The recorded value of a call, or its recorded failure."""
    if entry.error is not None:
        raise CallFailed(entry.error)
    return unpack(bytes(entry.value))


def tell_apart(gates: Sequence[Gate[Any]]) -> None:
    """Gates for one kind of event must know of each other: one event is to open one of them."""
    topics = Counter(gate.topic for gate in gates)
    for gate in gates:
        gate.shared = topics[gate.topic] > 1


class Durables:
    """The durable calls of one attempt, one at a time."""

    def __init__(self, attempt: Recorder) -> None:
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

    def call(self, name: str, kind: str) -> Call:
        if name == kind:  # nobody has named it: calls of that kind are told apart by their order
            return self.call_anywhere(name, kind)
        self._check()
        return self.journal.call(name, kind)

    def call_anywhere(self, name: str, kind: str) -> Call:
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

    def keep(self, call: Call, value: Any, error: str | None = None) -> Entry:
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

    async def one(self, call: Durable[T]) -> T:
        call.awaited = True
        self._enter(call.name)
        try:
            await call.begin()
            if call.done():
                return call.result()
            raise self._sleep([call])
        finally:
            self._busy = None

    async def all(self, calls: Sequence[Durable[Any]]) -> list[Any]:
        """Every value, in order; goes to sleep until the last one is there."""
        self._check_calls("ctx.all", calls)
        with self.exclusive("ctx.all"):
            await self._begin(calls)
            waiting = [call for call in calls if not call.done()]
            if waiting:
                raise self._sleep(waiting)
            return [call.result() for call in calls]

    async def first_of(self, calls: Mapping[str, Durable[Any]], call: Call) -> tuple[str, Any]:
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
            won = unpack(bytes(call.entry.value)) if call.entry is not None else await self._raced(calls, call)
            if won not in calls or not calls[won].done():
                raise self.journal.broken(
                    NonDeterminism,
                    f"{call.key} was recorded as won by {won!r}, which is not to be had among {', '.join(calls)} now: "
                    "give a ctx.first that has changed another name=",
                )
            return won, calls[won].result()

    async def _raced(self, calls: Mapping[str, Durable[Any]], call: Call) -> str:
        """Which was there first. Once that is recorded nobody begins again: the others were let go."""
        gates = {key: one for key, one in calls.items() if isinstance(one, Gate)}
        await self._begin(list(gates.values()))
        won = self._winner(calls)
        if won is None and len(gates) < len(calls):
            return await self._run_race(calls, gates, call)
        if won is None:
            raise self._sleep(list(calls.values()))
        self.keep(call, won)
        self.journal.urgent = True  # what is done next must not be done on another answer after a crash
        for key, gate in gates.items():
            if key != won:
                gate.let_go()
        return won

    async def _run_race(self, calls: Mapping[str, Durable[Any]], gates: Mapping[str, Gate[Any]], call: Call) -> str:
        """Runs functions until one has ended or the first gate is due. The value and who won are one write: it is
        refused, and the handler run again, if an event or a trigger was there before."""
        runs = {key: run for key, run in calls.items() if isinstance(run, RunCall)}
        await self._watch(list(gates.values()))
        due = min((gate.due for gate in gates.values() if gate.due is not None), default=None)
        ended = await self._until(due, runs)
        if due is not None and due <= min((outcome.at for outcome in ended.values()), default=due):
            await self._begin(list(gates.values()))
        there = {key: outcome.at for key, outcome in ended.items()}
        there |= {key: gate.opened_at for key, gate in gates.items() if gate.done()}
        won = min((key for key in calls if key in there), key=lambda key: there[key])
        if won in ended:
            runs[won].take(ended[won])
        self.keep(call, won)
        for key, gate in gates.items():
            if key != won:
                gate.forgo()
        await self.flush()
        return won

    async def _watch(self, gates: Sequence[Gate[Any]]) -> None:
        """Written before functions run: a crash does not begin the times anew, and what comes finds its gate."""
        tell_apart(gates)
        for gate in gates:
            gate.watch()
        await self.flush()

    async def _until(self, due: int | None, runs: Mapping[str, RunCall]) -> dict[str, Outcome]:
        """The functions that ended first; none if a moment came before."""
        seconds = max(due - self.now_ms, 0) / 1000 if due is not None else None
        ended = await side_by_side({key: run.outcome for key, run in runs.items()}, seconds)
        if not ended and due is not None:
            self._reached = max(self._reached, due)
        return ended

    def _winner(self, calls: Mapping[str, Durable[Any]]) -> str | None:
        """Whichever was there first; of several at once, the one that stands first."""
        done = {key: call.opened_at if isinstance(call, Gate) else 0 for key, call in calls.items() if call.done()}
        return min(done, key=lambda key: done[key], default=None)

    async def _begin(self, calls: Sequence[Durable[Any]]) -> None:
        await self.flush_urgent()
        results = await asyncio.gather(*(call.begin() for call in calls), return_exceptions=True)
        for problem in results:
            if isinstance(problem, BaseException) and not isinstance(problem, CallFailed):
                raise problem

    def _check_calls(self, what: str, calls: Sequence[Any]) -> None:
        for call in calls:
            if not isinstance(call, Durable):
                raise TypeError(
                    f"{what} was given a {type(call).__name__}: give it durable calls that are not awaited yet, such "
                    "as ctx.wait.event(…), ctx.wait.time(…), t.wait() or ctx.run(…); in a `def` handler, such as "
                    "ctx.branch.event(…) or ctx.branch.run(…)"
                )
            call.awaited = True

    def _sleep(self, waiting: Sequence[Durable[Any]]) -> Suspension:
        gates = [call for call in waiting if isinstance(call, Gate)]
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
