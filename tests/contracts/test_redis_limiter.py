"""The end of a span of BullMQ's limiter. A script sees the keys as they were when it began, though their time is up."""

from __future__ import annotations

import pytest

import redis_server
from penstock.ports.unit import ClaimRequest, NewJob, QueueDemand, RateLimit, Unit
from penstock.stores.redis import RedisStore, connection, scripts, store

LOOK = "local left = call('PTTL', base .. 'limiter')"
ASK = ClaimRequest((QueueDemand("orders", 10, RateLimit(2, 300)),), 30_000, "w1")


async def test_a_claim_that_sees_a_span_end_counts_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script is held up between reading how many were handed out and reading how long that counts."""
    held_up = f"while not want.held and call('PTTL', base .. 'limiter') > 0 do end want.held = true {LOOK}"
    texts = scripts.scripts()
    assert LOOK in texts["turn"].text
    made = {name: scripts.Script(name, one.text.replace(LOOK, held_up)) for name, one in texts.items()}
    place = RedisStore(redis_server.url())
    await place.open()
    try:
        await place.commit([Unit(f"u{n}", jobs=[NewJob(f"j{n}", "orders", "charge", b"1")]) for n in range(10)])
        assert len((await place.claim(ASK)).claims) == 2
        for module in (store, connection):
            monkeypatch.setattr(module, "scripts", lambda: made)
        assert len((await place.claim(ASK)).claims) == 2
    finally:
        await place.close()
