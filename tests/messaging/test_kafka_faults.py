"""Kafka: rebalances, kills and outages lose no message and apply none twice."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer

import kafka_server
from penstock import App
from penstock.app.bridges import AppBridgeHost
from penstock.handlers.decorators import job
from penstock.messaging.kafka import AddJob, Kafka
from penstock.messaging.kafka import positions as positioning
from penstock.messaging.kafka.clients import has_record
from penstock.ports.unit import JobState, StateWrite
from penstock.testing.until import until

TOPIC = "orders"
COUNT = 60
QUICK = {"retry": {"attempts": 2, "backoff": {"type": "fixed", "delayMs": 1}}}


@job(queue="mail")
async def mail(input: Any) -> Any:
    return input


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[kafka_server.Broker]:
    one = kafka_server.Broker()
    one.create(TOPIC, 1)
    yield one
    one.stop()


async def send(broker: kafka_server.Broker, numbers: range) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=broker.address)
    await producer.start()
    for n in numbers:
        await producer.send_and_wait(TOPIC, json.dumps({"n": n}).encode(), b"key")
    await producer.stop()


async def consume_twice(broker: kafka_server.Broker, url: str) -> list[int]:
    """Let two bridges apply the same partition, as in the moment of a rebalance. Jobs are removed as soon as they are
    added: a queue forgets their ids, so only the position can prevent a second effect."""
    await send(broker, range(COUNT))
    done: list[int] = []
    async with App(url, handlers=[mail]) as app:
        host = AppBridgeHost(app)
        bridges = [Kafka(broker.address, group="g", consume={TOPIC: AddJob("mail")}, **QUICK) for _ in range(2)]
        for bridge in bridges:
            await bridge.open(host)
        partitions = [_partition(bridge) for bridge in bridges]
        records = await _records(broker)

        async def apply(partition: Any) -> None:
            for record in records:
                await partition.apply(record, lambda: asyncio.sleep(0, COUNT))
                for row in await app.store.jobs("mail", JobState.WAITING, limit=1000):
                    if await app.store.remove(row.id):
                        done.append(_number(row.payload))

        late, other = partitions
        await late.apply(records[0], lambda: asyncio.sleep(0, COUNT))
        await apply(other)  # the group gave it the partition
        await apply(late)  # and the one before has not heard of it
        for bridge in bridges:
            await bridge.close()
    return done


def _number(payload: bytes) -> int:
    value = json.loads(payload)
    return int((value[0] if isinstance(value, list) else value)["n"])


def _partition(bridge: Kafka) -> Any:
    from aiokafka import TopicPartition

    from penstock.messaging.targets import resolve_routes

    made: list[Any] = []
    from penstock.messaging.kafka import bridge as module

    real = module.TopicConsumer
    module.TopicConsumer = lambda *a: made.append(a[4]) or real(*a)  # type: ignore[assignment, misc, func-returns-value]
    try:
        bridge._make_loop([resolve_routes(TOPIC, AddJob("mail"), bridge._host)], 1, "g")
    finally:
        module.TopicConsumer = real  # type: ignore[misc]
    return made[0](TopicPartition(TOPIC, 0))


async def _records(broker: kafka_server.Broker) -> list[Any]:
    from aiokafka import TopicPartition

    from penstock.messaging.kafka.clients import reading

    records: list[Any] = []
    place = TopicPartition(TOPIC, 0)
    async with reading(Kafka(broker.address)._address, place) as client:
        while len(records) < COUNT:
            for batch in (await client.getmany(timeout_ms=200)).values():
                records += batch
    return records


async def test_two_owners_of_a_partition_apply_each_record_once(broker: kafka_server.Broker, url: str) -> None:
    assert Counter(await consume_twice(broker, url)) == Counter(range(COUNT))


async def test_without_the_position_in_the_commit_a_record_is_applied_twice(
    broker: kafka_server.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the test above: the position is written, but not compared."""

    def write(self: Any, value: Any) -> StateWrite:
        import msgspec

        return StateWrite(self._key, msgspec.json.encode(value), None)

    monkeypatch.setattr(positioning.PartitionPosition, "_write", write)
    assert max(Counter(await consume_twice(broker, ":memory:")).values()) > 1


async def test_a_broker_that_goes_away_and_comes_back_loses_nothing(broker: kafka_server.Broker) -> None:
    bridge = Kafka(broker.address, group="g", consume={TOPIC: AddJob("mail")}, **QUICK)
    broker.take_down()  # away at the start
    async with App(":memory:", handlers=[mail], bridges=[bridge]) as app, app.workers.background():
        assert not await bridge.is_healthy()
        broker.bring_up()
        await send(broker, range(10))
        await until(lambda: _has_completed(app, 10), 60)
        assert await bridge.is_healthy()
        broker.take_down()
        assert not await bridge.is_healthy()
        broker.bring_up()
        await send(broker, range(10, 20))
        await until(lambda: _has_completed(app, 20), 60)
        rows = await app.store.jobs("mail", JobState.COMPLETED, limit=1000)
        assert Counter(_number(row.payload) for row in rows) == Counter(range(20))


async def test_a_dead_letter_is_sent_once_though_its_process_dies(
    broker: kafka_server.Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process dies after it sent the dead letter and before it saved the position."""
    from penstock.messaging.kafka.partition import Partition

    await send(broker, range(1))

    async def refuse(message: Any) -> None:
        raise OSError("never")

    sent = asyncio.Event()
    real = Partition._send_dead_letter

    async def send_and_die(self: Any, *args: Any) -> None:
        await real(self, *args)
        sent.set()
        await asyncio.Event().wait()

    url = f"sqlite:///{tmp_path}/p.db"
    for is_first in (True, False):
        monkeypatch.setattr(Partition, "_send_dead_letter", send_and_die if is_first else real)
        bridge = Kafka(broker.address, group="g", consume={TOPIC: refuse}, grace="0s", **QUICK)
        async with App(url, handlers=[mail], bridges=[bridge]) as app, app.workers.background():
            if is_first:
                await asyncio.wait_for(sent.wait(), 30)
                continue
            await until(lambda: _is_past(app, 0), 30)
    address = Kafka(broker.address)._address
    found = [
        await has_record(address, f"{TOPIC}-dlq", partition, start, f"{TOPIC}-0-0")
        for partition in range(4)
        for start in (0, 1)
    ]
    assert found.count(True) == 1  # one record, at offset 0 of its partition


async def _is_past(app: App, offset: int) -> bool:
    value = await app.state.get("kafka/g/orders/0")
    return value is not None and value.get("offset", -1) >= offset


async def _has_completed(app: App, count: int) -> bool:
    return len(await app.store.jobs("mail", JobState.COMPLETED, limit=1000)) >= count
