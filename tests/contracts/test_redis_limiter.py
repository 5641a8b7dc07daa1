"""The end of a window of BullMQ's limiter. A script sees keys as they were when it started, expired or not."""

from __future__ import annotations

import pytest

import redis_server
from penstock.ports.unit import ClaimRequest, NewJob, QueueDemand, RateLimit, Unit
from penstock.stores.redis import RedisStore, connection, scripts, store

READ_TTL = "local left = call('PTTL', base .. 'limiter')"
REQUEST = ClaimRequest((QueueDemand("orders", 10, RateLimit(2, 300)),), 30_000, "w1")


async def test_a_claim_at_the_end_of_a_window_counts_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script waits between reading the count and reading its time to live."""
    delayed = (
        f"while not demand.delayed and call('PTTL', base .. 'limiter') > 0 do end demand.delayed = true {READ_TTL}"
    )
    texts = scripts.scripts()
    assert READ_TTL in texts["commit"].text
    changed = {name: scripts.Script(name, one.text.replace(READ_TTL, delayed)) for name, one in texts.items()}
    redis_store = RedisStore(redis_server.url())
    await redis_store.open()
    try:
        await redis_store.commit([Unit(f"u{n}", jobs=[NewJob(f"j{n}", "orders", "charge", b"1")]) for n in range(10)])
        assert len((await redis_store.claim(REQUEST)).claims) == 2
        for module in (store, connection):
            monkeypatch.setattr(module, "scripts", lambda: changed)
        assert len((await redis_store.claim(REQUEST)).claims) == 2
    finally:
        await redis_store.close()
