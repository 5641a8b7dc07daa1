"""The contract on Redis."""

from __future__ import annotations

import pytest

import redis_server
from penstock.core.clock import Clock
from penstock.stores.redis import RedisStore
from penstock.testing.contracts import StoreContract


@pytest.mark.spec("000-16.2", "002-6.4")
class TestRedis(StoreContract):
    async def make_store(self, clock: Clock) -> RedisStore:
        return RedisStore(redis_server.url(), clock=clock)
