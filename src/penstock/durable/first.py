"""`ctx.first`: which of several calls is there first, functions that run side by side among them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..core.errors import Suspension
from .calls import CallOutcome, DurableCall, RunCall, WaitCall
from .journal import Journal, JournalCall, JournalEntry

Racer = Callable[[], Coroutine[Any, Any, CallOutcome]]


class Course(Protocol):
    """The durable calls of an attempt, as a race sees them."""

    @property
    def journal(self) -> Journal: ...

    def keep(self, call: JournalCall, value: Any, error: str | None = None) -> JournalEntry: ...

    async def flush(self) -> None: ...

    async def begin(self, calls: Sequence[DurableCall[Any]]) -> None: ...

    async def watch(self, gates: Sequence[WaitCall[Any]]) -> None: ...

    async def until(self, due: int | None, runs: Mapping[str, RunCall]) -> dict[str, CallOutcome]: ...

    def sleep(self, waiting: Sequence[DurableCall[Any]]) -> Suspension: ...


class FirstCall:
    """One `ctx.first` of which no winner is recorded."""

    def __init__(self, course: Course, calls: Mapping[str, DurableCall[Any]], call: JournalCall) -> None:
        self._course = course
        self._calls = calls
        self._call = call
        self._gates = {key: one for key, one in calls.items() if isinstance(one, WaitCall)}
        self._runs = {key: one for key, one in calls.items() if isinstance(one, RunCall)}

    async def winner(self) -> str:
        """Which was there first. Once that is recorded nobody begins again: the others were let go."""
        course = self._course
        await course.begin(list(self._gates.values()))
        won = self._there_already()
        if won is None and self._runs:
            return await self._functions()
        if won is None:
            raise course.sleep(list(self._calls.values()))
        course.keep(self._call, won)
        course.journal.urgent = True  # what is done next must not be done on another answer after a crash
        for gate in self._losing_gates(won):
            gate.let_go()
        return won

    def _there_already(self) -> str | None:
        """Whichever was there first; of several at once, the one that stands first."""
        done = {
            key: one.resolved_at if isinstance(one, WaitCall) else 0 for key, one in self._calls.items() if one.done()
        }
        return min(done, key=lambda key: done[key], default=None)

    async def _functions(self) -> str:
        """Runs functions until one has ended or the first gate is due. The value and who won are one write: it is
        refused, and the handler run again, if an event or a trigger was there before."""
        course, gates = self._course, list(self._gates.values())
        await course.watch(gates)
        due = min((gate.due for gate in gates if gate.due is not None), default=None)
        ended = await course.until(due, self._runs)
        if due is not None and due <= min((outcome.at for outcome in ended.values()), default=due):
            await course.begin(gates)
        there = {key: outcome.at for key, outcome in ended.items()}
        there |= {key: gate.resolved_at for key, gate in self._gates.items() if gate.done()}
        won = min((key for key in self._calls if key in there), key=lambda key: there[key])
        if won in ended:
            self._runs[won].take(ended[won])
        course.keep(self._call, won)
        for gate in self._losing_gates(won):
            gate.forgo()
        await course.flush()
        return won

    def _losing_gates(self, won: str) -> list[WaitCall[Any]]:
        return [gate for key, gate in self._gates.items() if key != won]


async def side_by_side(racers: Mapping[str, Racer], seconds: float | None) -> dict[str, CallOutcome]:
    """Those that ended first, mostly one, or none if the time is over before. The others are stopped."""
    tasks = {name: asyncio.create_task(race()) for name, race in racers.items()}
    try:
        done, _ = await asyncio.wait(tasks.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _stop(tasks.values())
    return {name: task.result() for name, task in tasks.items() if task in done}


async def _stop(tasks: Iterable[asyncio.Task[CallOutcome]]) -> None:
    """Cancels what still runs and waits for its end: it may have something to tidy up. A thread cannot be cancelled,
    it is left to itself."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # asyncio complains of exceptions nobody looked at
