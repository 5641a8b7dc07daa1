"""Keeps trying while a store is unavailable, up to a timeout: its server starts, restarts or cannot be reached."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from .durations import Duration, format_ms, to_ms
from .errors import StoreClosed, StoreError, StoreUnavailable, WaitTimeout

log = logging.getLogger("penstock.store")

T = TypeVar("T")
P = ParamSpec("P")
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 1.0


class OutageRetry:
    """Repeats a read until the store answers, and logs each outage once.

    The first read is not repeated: a store that has never answered may not exist, so its error is raised."""

    def __init__(self, what: str, *, has_answered: bool = False, retry_on: type[Exception] = StoreUnavailable) -> None:
        self._what = what
        self._has_answered = has_answered
        self._retry_on = retry_on
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
                self._log_once(problem)
            else:
                self._has_answered, self.problem = True, None
                return answer
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE_S)

    def _log_once(self, problem: Exception) -> None:
        if self.problem is None:
            unexpected = problem if not isinstance(problem, StoreError) else None
            log.warning("%s: no answer from the store, trying again: %s", self._what, problem, exc_info=unexpected)
        self.problem = problem


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
        if outage_retry.problem is not None:
            message = f"{subject} did not end within {timeout}; the store is not answering: {outage_retry.problem}"
            raise WaitTimeout(message) from outage_retry.problem
        raise WaitTimeout(
            f"{subject} did not end within {timeout}; check that a worker is running for {queues}"
        ) from None
