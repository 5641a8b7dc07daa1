"""A deterministic event loop: virtual time, no threads, several parties that take turns by a seeded choice.

A party stands for a process. Within a party, callbacks run in the order that asyncio promises; between parties any
order is possible, so the next party is chosen at random. A party can be paused, or killed: it then never runs again.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

_PARTY: contextvars.ContextVar[Party] = contextvars.ContextVar("party")


class Party:
    """A process of the simulation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.paused_until = 0.0
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = contextvars.copy_context()
        self.context.run(_PARTY.set, self)


MAX_STEPS = 60_000  # an ordinary simulation takes about four thousand


class Deadlock(Exception):
    """No party can run and no timer is set, or the parties run without end."""


class SimLoop(asyncio.AbstractEventLoop):
    """Runs parties under virtual time. `rng` decides which one runs next; `lateness` is how late a timer may fire."""

    def __init__(self, rng: random.Random, lateness: float = 0.002) -> None:
        self._rng = rng
        self._lateness = lateness
        self._now = 0.0
        self._limit = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Party]] = []
        self._count = itertools.count()
        self.root = Party("root")
        self.parties = [self.root]
        self.steps = 0
        self.problems: list[dict[str, Any]] = []

    # Parties

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> Party:
        party = Party(name)
        self.parties.append(party)
        self.create_task(work, context=party.context)
        return party

    def kill(self, party: Party) -> None:
        """Kill a party: nothing of it runs again, not even its `finally` blocks."""
        party.is_dead = True
        party.ready.clear()
        self.parties.remove(party)

    def pause(self, party: Party, seconds: float) -> None:
        party.paused_until = self._now + seconds
        self.call_later(seconds, lambda: None, context=self.root.context)

    def current(self) -> Party:
        return _PARTY.get(self.root)

    # Run

    def run(self, work: Coroutine[Any, Any, Any], limit: float) -> Any:
        """Run the root's work to its end, for at most `limit` virtual seconds."""
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(work, context=self.root.context)
            self._limit = limit
            while not task.done():
                self._step()
            return task.result()
        finally:
            asyncio._set_running_loop(None)

    def _step(self) -> None:
        now, timers = self._now, self._timers
        while timers and timers[0][0] <= now:
            _, _, handle, party = heapq.heappop(timers)
            if not party.is_dead and not handle._cancelled:
                party.ready.append(handle)
        runnable = [party for party in self.parties if party.ready and party.paused_until <= now]
        if not runnable:
            self._skip()
            return
        party = runnable[0] if len(runnable) == 1 else self._rng.choice(runnable)
        handle = party.ready.popleft()
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise Deadlock(f"not finished after {MAX_STEPS:,} steps")
        if not handle._cancelled:
            handle._run()

    def _skip(self) -> None:
        while self._timers:
            when, _, handle, party = self._timers[0]
            if party.is_dead or handle._cancelled:
                heapq.heappop(self._timers)
                continue
            self._now = max(self._now, when)
            if self._now > self._limit:
                raise Deadlock(f"not finished after {self._limit} virtual seconds")
            return
        raise Deadlock("no party can run and no timer is set")

    # The interface of an asyncio loop

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        context = context if context is not None else contextvars.copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        party = context.get(_PARTY, self.root)
        if not party.is_dead:
            party.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(delay, 0), callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        context = context if context is not None else contextvars.copy_context()
        when += self._rng.random() * self._lateness
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        party = context.get(_PARTY, self.root)
        if not party.is_dead:
            heapq.heappush(self._timers, (when, next(self._count), handle, party))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        party = context.get(_PARTY, self.root) if context is not None else self.current()
        party.tasks.append(task)  # the garbage collector must not close coroutines of a killed party
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as problem:
            future.set_exception(problem)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.problems.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.problems.append(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def close(self) -> None:
        pass
