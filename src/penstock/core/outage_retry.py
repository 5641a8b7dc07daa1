"""Waiting for news from a store that may be away for a while: its server is started anew, or cannot be reached."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from .errors import StoreClosed, StoreError, StoreUnavailable

log = logging.getLogger("penstock.store")

T = TypeVar("T")
P = ParamSpec("P")
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds between two tries


class OutageRetry:
    """Asks until there is an answer, once there has been one: a store that is not there from the beginning may never
    be, so that is raised. It is said once each time the store goes away."""

    def __init__(self, what: str, *, begun: bool = False, bears: type[Exception] = StoreUnavailable) -> None:
        self._what = what
        self._begun = begun  # there has been an answer
        self._bears = bears
        self.problem: Exception | None = None  # why there is none now

    async def call(self, ask: Callable[P, Awaitable[T]], *given: P.args, **named: P.kwargs) -> T:
        """What is answered to a question, as soon as there is an answer."""
        pause = FIRST_PAUSE
        while True:
            try:
                answer = await ask(*given, **named)
            except self._bears as problem:
                if not self._begun or isinstance(problem, StoreClosed):
                    raise
                self._note(problem)
            else:
                self._begun, self.problem = True, None
                return answer
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _note(self, problem: Exception) -> None:
        if self.problem is None:
            unexpected = problem if not isinstance(problem, StoreError) else None
            log.warning("%s: no answer from the store, trying again: %s", self._what, problem, exc_info=unexpected)
        self.problem = problem
