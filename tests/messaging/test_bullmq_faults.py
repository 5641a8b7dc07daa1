"""BullMQ: a Redis that goes away and comes back loses no message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock import App
from penstock.handlers.decorators import job
from penstock.messaging.bullmq import AddJob, BullMQ
from penstock.ports.unit import JobState
from penstock.testing.until import until
from redis_server import Server


@job(queue="mail")
async def mail(input: Any) -> Any:
    return input


async def _completed(app: App, count: int) -> bool:
    return len(await app.store.jobs("mail", JobState.COMPLETED, limit=1000)) >= count


async def test_a_redis_that_goes_away_and_comes_back_loses_nothing(tmp_path: Path) -> None:
    server = Server(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    bridge = BullMQ(f"redis://127.0.0.1:{server.port}/0", consume={"orders": AddJob("mail")}, poll="20ms")
    try:
        async with App(":memory:", handlers=[mail], bridges=[bridge]) as app, app.workers.background():
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
