"""Who may write at the same time: what only ends attempts beside others of the kind, everything else alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ...ports.unit import Unit


class Turns:
    """First come, first served. Whoever goes alone waits for all that came before and holds up all that come after."""

    def __init__(self) -> None:
        self._door = asyncio.Lock()
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Until the block ends, others may be at it that go beside."""
        async with self._door:
            self._inside += 1
            self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Until the block ends, nobody else is at it."""
        async with self._door:
            await self._empty.wait()
            yield


def only_ends(units: Sequence[Unit]) -> bool:
    """Whether all of it ends attempts. A claim alone does not: it is to see what was written before it."""
    return bool(units) and all(unit.claim is not None and unit.outcome is not None for unit in units)
