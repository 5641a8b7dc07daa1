"""The bridge to Kafka keeps the contract of bridges."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest_asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

import kafka_server
import redis_server
from penstock.messaging.kafka import Kafka
from penstock.testing.contracts import BridgeContract

QUICK = {"retry": {"attempts": 3, "backoff": {"type": "fixed", "delayMs": 1}}}


class TestKafka(BridgeContract):
    @pytest_asyncio.fixture(autouse=True)
    async def _kafka(self) -> AsyncIterator[None]:
        self.broker = kafka_server.make_broker()
        self.producer = AIOKafkaProducer(bootstrap_servers=self.broker.address)
        await self.producer.start()
        self.groups: dict[str, str] = {}
        yield
        await self.producer.stop()
        self.broker.stop()

    def make_bridge(self, consume: Mapping[str, Any] | None = None, **options: Any) -> Kafka:
        return Kafka(self.broker.address, group="g", consume=consume, **{**QUICK, **options})

    def make_unreachable_bridge(self) -> Kafka:
        return Kafka(f"127.0.0.1:{redis_server.free_port()}")

    async def make_queue(self, name: str) -> None:
        self.broker.create(name, 1)

    async def send(self, queue: str, name: str, data: Any) -> None:
        key = str(data.get("urn", "")).encode()
        await self.producer.send_and_wait(queue, json.dumps(data).encode(), key, headers=[("name", name.encode())])

    async def read_dead_letters(self, queue: str) -> list[tuple[str, Any]]:
        found = []
        for record in await self._read(f"{queue}-dlq"):
            found.append((dict(record.headers)["name"].decode(), json.loads(record.value)["originalData"]))
        return found

    async def _read(self, topic: str) -> list[Any]:
        client = AIOKafkaConsumer(bootstrap_servers=self.broker.address, auto_offset_reset="earliest")
        await client.start()
        try:
            places = [TopicPartition(topic, n) for n in await self.producer.partitions_for(topic)]
            client.assign(places)
            ends, records = await client.end_offsets(places), []
            while any([await client.position(one) < ends[one] for one in places]):
                for batch in (await client.getmany(timeout_ms=100)).values():
                    records += batch
            return records
        finally:
            await client.stop()

    async def is_done(self, queue: str) -> bool:
        place = TopicPartition(queue, 0)
        for group in ("g", f"g-{queue}"):
            client = AIOKafkaConsumer(bootstrap_servers=self.broker.address, group_id=group, enable_auto_commit=False)
            await client.start()
            client.assign([place])
            committed, end = await client.committed(place), (await client.end_offsets([place]))[place]
            await client.stop()
            if committed == end and end:
                return True
        return False
