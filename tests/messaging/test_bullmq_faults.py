"""BullMQ: a Redis that goes away and comes back loses no message."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import redis_server
from penstock import App
from penstock.app.bridges import AppBridgeHost
from penstock.core.ids import new_token
from penstock.handlers.decorators import job
from penstock.messaging.bullmq import AddJob, BullMQ, consumer
from penstock.ports.unit import JobState
from penstock.testing.until import until
from redis_server import Server


@job(queue="mail")
async def mail(input: Any) -> Any:
    return input


async def _completed(app: App, count: int) -> bool:
    return len(await app.store.jobs("mail", JobState.COMPLETED, limit=1000)) >= count


@pytest.mark.spec("002-1.6", "002-5.4")
async def test_a_redis_that_goes_away_and_comes_back_loses_nothing(tmp_path: Path) -> None:
    server = Server(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    bridge = BullMQ(f"redis://127.0.0.1:{server.port}/0", consume={"orders": AddJob("mail")}, poll="20ms")
    server.kill()  # away at the start
    try:
        async with App(":memory:", handlers=[mail], bridges=[bridge]) as app, app.workers.background():
            assert not await bridge.is_healthy()
            assert [one.up for one in await app.check_bridges()] == [False]
            server.start()
            await until(bridge.is_healthy, 30)
            for n in range(10):
                await bridge.produce("orders", "paid", {"urn": f"urn:order:{n}"})
            server.kill()
            assert not await bridge.is_healthy()
            server.start()
            await until(bridge.is_healthy, 30)
            for n in range(10, 20):
                await bridge.produce("orders", "paid", {"urn": f"urn:order:{n}"})
            await until(lambda: _completed(app, 20), 60)
            rows = await app.store.jobs("mail", JobState.COMPLETED, limit=1000)
            assert len(rows) == 20
    finally:
        server.stop()


async def deliver_twice() -> tuple[int, int]:
    """The first bridge stops after the effect and before the end of the job: a second one gets the job again. Return the
    number of effects, and of keys."""
    url, deliveries = redis_server.url(), []

    class StoppedHost(AppBridgeHost):
        async def enqueue(self, queue: str, name: str | None, payload: Any, key: str) -> None:
            await super().enqueue(queue, name, payload, key)
            deliveries.append(key)
            if len(deliveries) == 1:
                await asyncio.Event().wait()

    async with App(":memory:", handlers=[mail]) as app:
        for count in (1, 2):
            bridge = BullMQ(url, consume={"orders": AddJob("mail")}, poll="20ms", grace="0s")
            await bridge.open(StoppedHost(app))
            if count == 1:
                await bridge.produce("orders", "paid", {"urn": "urn:order:1"})
            running = asyncio.create_task(bridge.run())
            await until(lambda count=count: len(deliveries) == count, 30)
            running.cancel()
            await asyncio.wait((running,))
            await bridge.close()
        return len(await app.store.jobs("mail", JobState.WAITING)), len(set(deliveries))


async def test_a_job_that_is_delivered_again_has_one_effect() -> None:
    assert await deliver_twice() == (1, 1)


async def test_with_a_key_for_each_delivery_it_has_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the test above."""
    monkeypatch.setattr(consumer, "name_effect", lambda *_: new_token())
    assert await deliver_twice() == (2, 2)
