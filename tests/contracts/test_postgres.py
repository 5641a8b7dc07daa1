"""The contract on Postgres."""

from __future__ import annotations

import pytest

import postgres_server
from penstock.core.clock import Clock
from penstock.stores.postgres import PostgresStore
from penstock.testing.contracts import StoreContract


@pytest.mark.spec("000-16.3")
class TestPostgres(StoreContract):
    accepts_any_bytes = False  # the column of event bodies is json

    async def make_store(self, clock: Clock) -> PostgresStore:
        return PostgresStore(postgres_server.prepared_url(), clock=clock)
