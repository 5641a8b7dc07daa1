"""The store contract, on a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.clock import Clock
from penstock.stores.sqlite import SqliteStore
from penstock.testing.contracts import StoreContract


class TestSqliteFile(StoreContract):
    @pytest.fixture(autouse=True)
    def _use_file(self, tmp_path: Path) -> None:
        self.path = tmp_path / "penstock.db"

    async def make_store(self, clock: Clock) -> SqliteStore:
        return SqliteStore(str(self.path), clock=clock)
