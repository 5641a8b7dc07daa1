"""A worker whose clock differs from the server's."""

from __future__ import annotations

import pytest

import redis_server
from penstock.core.clock import SystemClock
from penstock.ports.unit import ClaimRequest, NewJob, QueueDemand, Unit
from penstock.stores.redis import RedisStore


@pytest.mark.parametrize("offset_ms", [-3_600_000, 3_600_000])
async def test_the_next_due_time_is_by_the_clock_of_the_caller(offset_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a worker whose clock is an hour off would claim all the time, or not at all."""
    store = RedisStore(redis_server.url())
    await store.open()
    try:
        real_now = SystemClock.now_ms
        monkeypatch.setattr(SystemClock, "now_ms", lambda self: real_now(self) + offset_ms)
        before = SystemClock().now_ms()
        await store.commit([Unit("u1", jobs=[NewJob("a", "orders", "charge", b"1")])])
        work = await store.claim(ClaimRequest((QueueDemand("orders", 1),), 30_000, "w1"))
        assert work.next_due is not None
        assert before < work.next_due <= SystemClock().now_ms() + 1000
    finally:
        await store.close()
