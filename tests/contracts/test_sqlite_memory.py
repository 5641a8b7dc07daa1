"""The store contract, in memory."""

from __future__ import annotations

from penstock.core.clock import Clock
from penstock.stores.sqlite import SqliteStore
from penstock.testing.contracts import StoreContract


class TestSqliteMemory(StoreContract):
    async def make_store(self, clock: Clock) -> SqliteStore:
        return SqliteStore(clock=clock)
