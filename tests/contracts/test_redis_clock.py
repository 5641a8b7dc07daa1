"""The server's clock, and ours beside it."""

from __future__ import annotations

import pytest

import redis_server
from penstock.core.clock import SystemClock
from penstock.ports.unit import ClaimRequest, NewJob, QueueDemand, Unit
from penstock.stores.redis import RedisStore


@pytest.mark.parametrize("behind", [-3_600_000, 3_600_000])
async def test_when_to_ask_again_is_told_by_the_clock_of_whoever_asks(
    behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose clock is an hour off would else ask all the time, or not at all."""
    store = RedisStore(redis_server.url())
    await store.open()
    try:
        truth = SystemClock.now_ms
        monkeypatch.setattr(SystemClock, "now_ms", lambda self: truth(self) + behind)
        here = SystemClock().now_ms()
        await store.commit([Unit("u1", jobs=[NewJob("a", "orders", "charge", b"1")])])
        work = await store.claim(ClaimRequest((QueueDemand("orders", 1),), 30_000, "w1"))
        assert work.next_due is not None
        assert here < work.next_due <= SystemClock().now_ms() + 1000
    finally:
        await store.close()
