"""The store under test: new for every test, on a fake clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ...core.clock import Clock
from ...ports.store import Store
from ..clock import FakeClock


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
