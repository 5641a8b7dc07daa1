"""Retries reads while a store is unavailable: its server restarts, or cannot be reached."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from .errors import StoreClosed, StoreError, StoreUnavailable

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
