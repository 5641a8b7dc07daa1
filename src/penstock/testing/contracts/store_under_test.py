"""The store under test: new for every test, on a fake clock; and a snapshot of everything it shows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from ...core.clock import Clock
from ...ports.store import JobRow, Store
from ...ports.unit import JobState
from ..clock import FakeClock

PAGE = 1000


class StoreUnderTest(ABC):
    """The base of every contract. Subclass a contract, define `make_store`, and pytest runs it."""

    pytestmark = pytest.mark.asyncio

    @abstractmethod
    async def make_store(self, clock: Clock) -> Store:
        """Return a new, empty store that reads only this clock; the suite opens and closes it."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest_asyncio.fixture
    async def store(self, clock: FakeClock) -> AsyncIterator[Store]:
        store = await self.make_store(clock)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


async def take_snapshot(store: Store) -> dict[str, Any]:
    """Return streams with their events, runs, queues with their jobs, pending waits, schedules and state.

    Two equal snapshots mean that nothing changed in between.
    """
    queues = await store.queues()
    streams = await store.streams(limit=PAGE)
    return {
        "streams": {name: await store.read(name, limit=PAGE) for name in streams},
        "runs": await store.runs(limit=PAGE),
        "queues": queues,
        "jobs": [job for queue in queues for job in await jobs_of(store, queue.name)],
        "waits": await store.waits_by_time(limit=PAGE),
        "schedules": await store.schedules(),
        "state": await store.states("", limit=PAGE),
    }


async def jobs_of(store: Store, queue: str) -> list[JobRow]:
    return [job for state in JobState for job in await store.jobs(queue, state, limit=PAGE)]
