"""Two worker processes that are killed again and again while messages of BullMQ or Kafka reach entities: order per urn is kept,
no message is lost, none is applied twice.

With PENSTOCK_FAULTS=full: 10,000 messages for 500 urns, and 100 kills.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from message_worker import QUEUE, Ledger, make_bridge

import kafka_server
import redis_server
from penstock import App
from penstock.entities.record import decode
from penstock.testing import until

FULL = os.environ.get("PENSTOCK_FAULTS") == "full"
EVENTS, URNS, KILLS = (10_000, 500, 100) if FULL else (120, 10, 2)
WAIT_S = 120 + EVENTS / 10
PROGRAM = Path(__file__).with_name("message_worker.py")
pytestmark = pytest.mark.timeout(3600 if FULL else 300)


@pytest.fixture(params=["bullmq", "kafka"])
def system(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Return the name of a system and its address."""
    if request.param == "bullmq":
        yield "bullmq", redis_server.url()
        return
    broker = kafka_server.Broker()
    broker.create(QUEUE, 4)
    yield "kafka", broker.address
    broker.stop()


async def start(*arguments: str) -> asyncio.subprocess.Process:
    worker = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert worker.stdout is not None
    await worker.stdout.readline()
    return worker


async def stop(worker: asyncio.subprocess.Process) -> None:
    if worker.returncode is None:
        worker.kill()
    await worker.wait()


async def test_kills_lose_no_message_and_repeat_none(system: tuple[str, str], shared_url: str) -> None:
    async with App(shared_url, handlers=[Ledger]) as app:
        workers = [await start(shared_url, *system), await start(shared_url, *system)]
        try:
            kills = asyncio.create_task(kill_often(app, (shared_url, *system), workers))
            async with make_bridge(*system, is_consumer=False) as producer:
                for first in range(0, EVENTS, URNS):  # one message of each urn at a time: their order is known
                    await asyncio.gather(*(send(producer, n) for n in range(first, min(first + URNS, EVENTS))))
                await kills
                await until(lambda: has_handled(app, EVENTS), WAIT_S)
        finally:
            for worker in workers:
                await stop(worker)
        for n in range(URNS):
            assert (await app.entities.data(f"ledger-{n}"))["seen"] == list(range(n, EVENTS, URNS)), f"ledger-{n}"


async def send(producer: Any, n: int) -> None:
    await producer.produce(QUEUE, "add", {"urn": f"ledger-{n % URNS}", "payload": n})


async def kill_often(app: App, arguments: tuple[str, ...], workers: list[asyncio.subprocess.Process]) -> None:
    """Kill a worker each time some more events are done, and start another one."""
    for kill in range(KILLS):
        goal = EVENTS * (kill + 1) // (KILLS + 2)
        await until(lambda goal=goal: has_handled(app, goal), WAIT_S)  # type: ignore[misc]
        await stop(workers[kill % 2])
        workers[kill % 2] = await start(*arguments)


async def has_handled(app: App, goal: int) -> bool:
    rows = await app.store.runs(flow="ledger", limit=1000)
    return sum(decode(row.record).handled for row in rows) >= goal
