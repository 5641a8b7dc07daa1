"""The pool: children are started when they are needed, kept warm, replaced, and killed with what they have started."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Coroutine
from typing import Any

from ...core.errors import PythonMissing, RunnerLost
from ..guard import Guard
from .child import START_TIMEOUT_S, Child
from .options import ProcessOptions

log = logging.getLogger("penstock.runner")
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 30.0
CHECK_INTERVAL_S = 1.0  # of memory
PING_INTERVAL_S = 5.0
SILENCE_S = 30.0  # an idle child that does not answer for so long is killed


def backoff_s(failures: int) -> float:
    """Return how long to wait before another child is started, after so many that ended by themselves."""
    return float(min(FIRST_BACKOFF_S * 2 ** min(failures - 1, 20), MAX_BACKOFF_S))


def _cannot_start(why: str) -> RunnerLost:
    return RunnerLost(
        f"a child process of the runner cannot be started: {why}; check the settings process_python, process_env"
    )


class Pool:
    """At most `options.children` children. A task that finds none idle waits for one."""

    def __init__(self, options: ProcessOptions) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._guard = Guard()
        self.children: set[Child] = set()
        self.started = 0  # children, in total
        self._idle: deque[Child] = deque()
        self._waiters: deque[asyncio.Future[Child]] = deque()
        self._starting = 0
        self._failures = 0  # children that ended by themselves since a task was done
        self._is_closed = False
        self._background: set[asyncio.Task[None]] = set()
        self._health: asyncio.Task[None] | None = None

    def take_idle(self) -> Child | None:
        """Return a child that takes a task at once; None if there is none."""
        while self._idle:
            child = self._idle.pop()  # the one that was used last: its memory is warm
            if child.ready.is_set() and child.killed_for is None:  # a killed one stays here until it has ended
                return child
        return None

    async def acquire(self) -> Child:
        """Wait for a child that takes a task. Raise RunnerLost if none can be started."""
        waiter: asyncio.Future[Child] = self._loop.create_future()
        self._waiters.append(waiter)
        self._start_missing()
        try:
            return await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._offer(waiter.result())
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def release(self, child: Child) -> None:
        """Take a child back after a task."""
        if child.ready.is_set():
            self._failures = 0
            self._take_back(child)
        else:
            self._spawn(self._settle(child))

    def _take_back(self, child: Child) -> None:
        options = self._options
        is_spent = options.jobs and child.jobs >= options.jobs
        is_large = options.memory_mb and child.rss_mb > options.memory_mb
        if is_spent or is_large or child.is_stale or self._is_closed:
            self._spawn(self._retire(child))
        else:
            self._offer(child)

    def _offer(self, child: Child) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(child)
                return
        self._idle.append(child)

    async def _settle(self, child: Child) -> None:
        """Wait until a child has left its handler: it was cancelled. Then SIGTERM, then SIGKILL."""
        grace = self._options.grace_s
        if not await child.wait_until_ready(grace):
            child.terminate()
            if not await child.wait_until_ready(grace):
                child.kill(f"its handler did not stop within {2 * grace:g} s")
        if child.ready.is_set():
            self._take_back(child)

    async def _retire(self, child: Child) -> None:
        child.kill("it was replaced")
        await child.ended.wait()

    # Starting

    def _start_missing(self) -> None:
        waiting = sum(not waiter.done() for waiter in self._waiters)
        while not self._is_closed and self._starting < waiting:
            if len(self.children) + self._starting >= self._options.children:
                return
            self._starting += 1
            self._spawn(self._start())

    async def _start(self) -> None:
        child: Child | None = None
        try:
            if self._failures:
                await asyncio.sleep(backoff_s(self._failures))
            if self._is_closed:
                return
            child = Child(self._options, self._guard.folder)
            self._guard.add(child.pid)
            self.started += 1
            self.children.add(child)
            self._spawn(self._bury(child))
            if self._health is None:
                self._health = self._loop.create_task(self._check(), name="penstock-children")
            is_ready = await child.wait_until_ready(START_TIMEOUT_S)
        except PythonMissing as problem:
            self._report_failed_start(problem)
            return
        except OSError as problem:
            self._report_failed_start(_cannot_start(f"{type(problem).__name__}: {problem}"))
            return
        finally:
            self._starting -= 1
        if is_ready:
            self._offer(child)
            return
        child.kill(f"it was not ready within {START_TIMEOUT_S:g} s")
        await child.ended.wait()
        if not self._is_closed:
            self._report_failed_start(_cannot_start(child.output.last_line or f"exit code {child.exit_code}"))

    def _report_failed_start(self, problem: RunnerLost | PythonMissing) -> None:
        self._failures += 1
        log.error("%s", problem)
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(type(problem)(str(problem)))

    async def _bury(self, child: Child) -> None:
        """Wait for the end of a child, clean up after it, and start another one if a task waits."""
        await child.ended.wait()
        self._guard.remove(child.pid)
        self.children.discard(child)
        with contextlib.suppress(ValueError):
            self._idle.remove(child)
        if child.killed_for != "it was replaced" and not self._is_closed:
            self._failures += 1
            log.warning("child %d of the process runner has ended: %s", child.pid, child.describe_end())
        await child.close()
        self._start_missing()

    # Health

    async def _check(self) -> None:
        next_ping = self._loop.time()
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            now = self._loop.time()
            for child in list(self.children):
                self._check_memory(child)
            if now >= next_ping:
                next_ping = now + PING_INTERVAL_S
                self._ping_all(now)

    def _ping_all(self, now: float) -> None:
        """Ping all children, and kill idle ones that do not answer. A handler may keep the interpreter's lock."""
        for child in list(self.children):
            if child in self._idle and now - child.last_heartbeat > SILENCE_S:
                child.kill(f"it was idle and did not answer for {SILENCE_S:g} s")
            child.ping()

    def _check_memory(self, child: Child) -> None:
        limit = self._options.memory_mb
        if limit and child.task is not None and (used := child.measure_mb()) > limit:
            child.kill(f"it used {used:.0f} MB; the limit is {limit} MB (setting process_memory)")

    def mark_stale(self) -> None:
        """Replace all children: the code has changed. Those that run a handler go on until it is done."""
        for child in self.children:
            child.is_stale = True
        idle = list(self._idle)
        self._idle.clear()
        for child in idle:
            self._spawn(self._retire(child))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, name="penstock-pool")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Stop all children: SIGTERM, then SIGKILL."""
        self._is_closed = True
        if self._health is not None:
            self._health.cancel()
        for waiter in self._waiters:
            waiter.cancel()
        for child in self.children:
            child.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.grace_s):
                await asyncio.gather(*(child.ended.wait() for child in self.children))
        for child in list(self.children):
            child.kill("the worker stops")
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
        await asyncio.to_thread(self._guard.close)
