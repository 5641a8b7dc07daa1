"""Admission: the caller of a connection that stays open is checked again and again, not only at its start."""

from __future__ import annotations

import asyncio

from starlette.requests import HTTPConnection

from ..app.tokens import TOKEN_CACHE_MS, Caller
from ..core.api_errors import Forbidden, Unauthorized
from ..core.errors import PenstockError
from .services import Services

# Together with the time that a token is cached: a revoked one works at most five seconds longer.
RECHECK_INTERVAL_S = TOKEN_CACHE_MS / 1000
REFUSALS = (Unauthorized, Forbidden)


class Admission:
    """One open connection and its caller."""

    def __init__(self, services: Services, connection: HTTPConnection, caller: Caller) -> None:
        self._services = services
        self._connection = connection
        self._caller = caller
        self._since_ms = services.app.clock.now_ms()

    async def check(self) -> Caller:
        """Return the caller as it is now. Raise Unauthorized or Forbidden if it may no longer call."""
        return await self._services.guard.recheck(self._connection, self._caller, self._since_ms)

    async def wait_until_refused(self) -> str:
        """Return why the caller may no longer call, when that is so. A store that does not answer refuses nobody."""
        while True:
            await asyncio.sleep(RECHECK_INTERVAL_S)
            try:
                await self.check()
            except REFUSALS as problem:
                return str(problem)
            except PenstockError:
                continue
