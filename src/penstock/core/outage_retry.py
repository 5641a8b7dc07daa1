"""Keeps trying while a store is unavailable, up to a timeout: its server starts, restarts or cannot be reached."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from .durations import Duration, format_ms, to_ms
from .errors import StoreClosed, StoreError, StoreUnavailable, WaitTimeout

log = logging.getLogger("penstock.store")

T = TypeVar("T")
P = ParamSpec("P")
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 1.0
FIRST_WARNING_PAUSE_S, MAX_WARNING_PAUSE_S = 10.0, 600.0


class OutageLog:
    """Logs outages of a store: a warning at the start, fewer and fewer while one lasts, and a line at its end.

    Everything that uses the store for one purpose shares one. Short outages in a row are logged like a long one."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.since: float | None = None  # when the outage started
        self._has_warned = False
        self._next_warning = 0.0
        self._pause = FIRST_WARNING_PAUSE_S

    def report_failure(self, what: str, problem: Exception) -> None:
        """Note that a call failed. `what` names it and says what happens now."""
        now = self._now()
        if self.since is None:
            self.since, self._has_warned = now, False
            if now >= self._next_warning:
                self._pause = FIRST_WARNING_PAUSE_S
        if now < self._next_warning:
            return
        self._has_warned = True
        self._next_warning, self._pause = now + self._pause, min(self._pause * 2, MAX_WARNING_PAUSE_S)
        unexpected = problem if not isinstance(problem, StoreError) else None
        log.warning("%s: %s", what, problem, exc_info=unexpected)

    def report_answer(self) -> None:
        """Note that the store answered."""
        since, self.since = self.since, None
        if since is not None and self._has_warned:
            log.warning("the store answers again after %s", format_ms((self._now() - since) * 1000))


class OutageRetry:
    """Repeats a read until the store answers.

    The first read is not repeated: a store that has never answered may not exist, so its error is raised."""

    def __init__(
        self,
        what: str,
        *,
        has_answered: bool = False,
        retry_on: type[Exception] = StoreUnavailable,
        outages: OutageLog | None = None,
    ) -> None:
        self._what = what
        self._has_answered = has_answered
        self._retry_on = retry_on
        self._outages = outages or OutageLog()
        self.problem: Exception | None = None  # why there is no answer now

    async def call(self, read: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `read` until the store answers, and return the answer."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                answer = await read(*args, **kwargs)
            except self._retry_on as problem:
                if not self._has_answered or isinstance(problem, StoreClosed):
                    raise
                self.problem = problem
                self._outages.report_failure(f"{self._what}: no answer from the store, trying again", problem)
            else:
                self._has_answered, self.problem = True, None
                self._outages.report_answer()
                return answer
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE_S)


async def open_with_retry(subject: str, open: Callable[[], Awaitable[None]], timeout: Duration | None) -> None:
    """Open a connection to a server that may still be starting: retry for as long as `timeout`.

    Without a timeout, raise the first error."""
    if timeout is None:
        await open()
        return
    outage_retry = OutageRetry(subject, has_answered=True)
    try:
        async with asyncio.timeout(to_ms(timeout) / 1000):
            await outage_retry.call(open)
    except TimeoutError:
        late = StoreUnavailable(f"{subject}: no answer within {format_ms(to_ms(timeout))}")
        raise outage_retry.problem or late from None


@asynccontextmanager
async def deadline(subject: str, timeout: Duration | None, queues: str) -> AsyncIterator[OutageRetry]:
    """Yield a retry policy for reads; raise WaitTimeout with the likely reason when the time is up."""
    outage_retry = OutageRetry(f"the end of {subject}")
    try:
        async with asyncio.timeout(to_ms(timeout) / 1000 if timeout is not None else None):
            yield outage_retry
    except TimeoutError:
        late = f"{subject} did not end within {format_ms(to_ms(timeout or 0))}"
        if outage_retry.problem is not None:
            message = f"{late}; the store is not answering: {outage_retry.problem}"
            raise WaitTimeout(message) from outage_retry.problem
        raise WaitTimeout(f"{late}; check that a worker listens to {queues}") from None


async def limit_time(items: AsyncIterator[T], subject: str, timeout: Duration | None) -> AsyncGenerator[T]:
    """Yield items as they arrive; raise WaitTimeout if the last one has not come when the time is up."""
    end = asyncio.get_running_loop().time() + to_ms(timeout) / 1000 if timeout is not None else None
    while True:
        try:
            async with asyncio.timeout_at(end):
                item = await anext(items)
        except StopAsyncIteration:
            return
        except TimeoutError:
            late = f"{subject} did not end within {format_ms(to_ms(timeout or 0))}"
            raise WaitTimeout(f"{late}; check that a worker listens to its queue") from None
        yield item
