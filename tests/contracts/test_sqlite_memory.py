"""The store contract, in memory."""

from __future__ import annotations

import pytest

from penstock.core.clock import Clock
from penstock.stores.sqlite import SqliteStore
from penstock.testing.contracts import StoreContract


@pytest.mark.spec("000-16.1", "001-6.3", "004-8.2")
class TestSqliteMemory(StoreContract):
    async def make_store(self, clock: Clock) -> SqliteStore:
        return SqliteStore(clock=clock)
