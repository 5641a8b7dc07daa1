"""The store under test: made new for every test, on a clock the test moves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ...core.clock import Clock
from ...ports.store import Store
from ..clock import FakeClock


class StoreUnderTest(ABC):
    """What every contract stands on. Subclass a contract, give `make_store`, and pytest runs it."""

    pytestmark = pytest.mark.asyncio

    @abstractmethod
    async def make_store(self, clock: Clock) -> Store:
        """A new and empty store that reads this clock and nothing else; the suite opens and closes it."""

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
