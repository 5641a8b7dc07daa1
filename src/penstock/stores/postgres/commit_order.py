"""Which commits of one process may run at the same time: those that only finish attempts; every other runs alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ...ports.unit import Unit


class CommitOrder:
    """A fair lock with a shared and an exclusive mode, first come, first served.

    An exclusive holder waits for all that came before it and blocks all that come after it.
    """

    def __init__(self) -> None:
        self._entry = asyncio.Lock()
        self._holders = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Hold the lock together with other shared holders."""
        async with self._entry:
            self._holders += 1
            self._is_empty.clear()
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                self._is_empty.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the lock alone."""
        async with self._entry:
            await self._is_empty.wait()
            yield


def only_finishes(units: Sequence[Unit]) -> bool:
    """Return whether every unit ends an attempt. A bare claim does not: it must see what was written before it."""
    return bool(units) and all(unit.claim is not None and unit.outcome is not None for unit in units)
