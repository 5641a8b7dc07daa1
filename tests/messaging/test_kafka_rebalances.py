"""Kafka: a member that joins and leaves the group again and again loses no message, repeats none, and keeps the order.

With PENSTOCK_FAULTS=full: 60 members come and go, about one a second. Each causes two rebalances.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import TopicPartition
from message_worker import QUEUE, Ledger, make_bridge

import kafka_server
from penstock import App
from penstock.app.bridges import AppBridgeHost
from penstock.entities.record import decode
from penstock.messaging.kafka.consumer import OwnedPartitions
from penstock.messaging.kafka.partition import Partition
from penstock.testing.until import until
from store_urls import SHARED, STORE_URLS

FULL = os.environ.get("PENSTOCK_FAULTS") == "full"
GUESTS, URNS = (60, 50) if FULL else (2, 10)
EVENTS = GUESTS * 50
TIMEOUT_S = 120
pytestmark = pytest.mark.timeout(1200 if FULL else 300)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[kafka_server.Broker]:
    one = kafka_server.Broker()
    one.create(QUEUE, 4)
    yield one
    one.stop()


class Assignments(list[int]):
    """The number of partitions of each assignment so far."""

    def __init__(self) -> None:
        super().__init__()
        self.has_messages = asyncio.Event()  # a member has messages in hand


@pytest.fixture
def assignments(monkeypatch: pytest.MonkeyPatch) -> Assignments:
    """Return the assignments. The first messages are held until the first guest is there, so that partitions are revoked with
    messages in hand."""
    found = Assignments()
    real, real_apply, may_apply = OwnedPartitions.on_partitions_assigned, Partition.apply, asyncio.Event()

    async def note(self: Any, assigned: Iterable[TopicPartition]) -> None:
        found.append(len(list(assigned)))
        if len(found) == 3:  # the stable member, then both of them
            may_apply.set()
        await real(self, assigned)

    async def apply(self: Any, *args: Any) -> None:
        found.has_messages.set()
        await may_apply.wait()
        await real_apply(self, *args)

    monkeypatch.setattr(OwnedPartitions, "on_partitions_assigned", note)
    monkeypatch.setattr(Partition, "apply", apply)
    return found


@pytest.fixture(params=SHARED if FULL else ("memory",))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORE_URLS[request.param](tmp_path)


async def consume(broker: kafka_server.Broker, url: str, assignments: Assignments) -> App:
    """Send messages while members join and leave; return once every message was taken."""
    app = App(url, handlers=[Ledger])
    await app.open()
    host = AppBridgeHost(app)
    async with make_bridge("kafka", broker.address, is_consumer=False) as producer, app.workers.background():
        await send(producer, 0)
        stable = make_bridge("kafka", broker.address)
        await stable.open(host)
        running = asyncio.create_task(stable.run())
        await assignments.has_messages.wait()  # or the first guest would come too early to cause a loss
        for turn in range(1, GUESTS + 1):
            guest = make_bridge("kafka", broker.address)
            await guest.open(host)
            before, staying = len(assignments), asyncio.create_task(guest.run())
            await until(lambda before=before: len(assignments) >= before + 2, TIMEOUT_S)  # type: ignore[misc]
            if turn < GUESTS:
                await send(producer, turn)
            before = len(assignments)
            staying.cancel()
            await asyncio.wait((staying,))
            await guest.close()
            await until(lambda before=before: len(assignments) > before, TIMEOUT_S)  # type: ignore[misc]
        await until(lambda: is_consumed(stable), TIMEOUT_S)
        running.cancel()
        await asyncio.wait((running,))
        await stable.close()
        await until(lambda: is_idle(app), TIMEOUT_S)
    return app


async def send(producer: Any, turn: int) -> None:
    for n in range(turn * 50, (turn + 1) * 50):
        await producer.produce(QUEUE, "add", {"urn": f"ledger-{n % URNS}", "payload": n})


async def is_consumed(bridge: Any) -> bool:
    """Return whether the group has committed every offset."""
    from penstock.messaging.kafka.clients import make_consumer

    await asyncio.sleep(0.5)  # a new client each time: without a pause they take all the time of this loop
    client = make_consumer(bridge._address, "ledgers", "earliest")
    await client.start()
    try:
        places = [TopicPartition(QUEUE, n) for n in range(4)]
        client.assign(places)
        ends = await client.end_offsets(places)
        return all([ends[place] == (await client.committed(place) or 0) for place in places])
    finally:
        await client.stop()


async def is_idle(app: App) -> bool:
    rows = await app.store.runs(flow="ledger", limit=1000)
    return bool(rows) and all(decode(row.record).current is None for row in rows)


async def read_ledgers(app: App) -> dict[int, list[int]]:
    return {n: (await app.entities.data(f"ledger-{n}")).get("seen", []) for n in range(URNS)}


EXPECTED = {n: list(range(n, EVENTS, URNS)) for n in range(URNS)}


async def test_rebalances_lose_nothing_and_keep_the_order(
    broker: kafka_server.Broker, store: str, assignments: Assignments
) -> None:
    app = await consume(broker, store, assignments)
    try:
        assert await read_ledgers(app) == EXPECTED
        assert len(assignments) >= 3 * GUESTS
    finally:
        await app.close()


async def test_offsets_that_are_committed_before_the_effect_lose_messages(
    broker: kafka_server.Broker, assignments: Assignments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the test above."""

    async def commit_first(self: Any, place: TopicPartition, records: list[Any]) -> None:
        self._applied[place] = records[-1].offset + 1
        await self._commit([place])
        await apply(self, place, records)

    apply = OwnedPartitions._apply
    monkeypatch.setattr(OwnedPartitions, "_apply", commit_first)
    app = await consume(broker, ":memory:", assignments)
    try:
        assert await read_ledgers(app) != EXPECTED
    finally:
        await app.close()
