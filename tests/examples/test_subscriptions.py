"""The subscriptions example: the same messages by BullMQ, from Node, and by Kafka lead to the same subscriptions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

import kafka_server
import redis_server
from node_programs import installed, node
from penstock import App
from penstock.testing import until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "subscriptions"
MESSAGES = [json.loads(line) for line in (EXAMPLE / "messages.jsonl").read_text().splitlines()]
EXPECTED = {
    "urn:subscription:ada": ("active", {"paid": 1800, "reminders": 0}),
    "urn:subscription:bob": ("expired", {"reminders": 2}),
    "urn:subscription:eve": ("cancelled", {"paid": 900, "reminders": 0}),
}


async def read_subscriptions() -> dict[str, Any]:
    """Run a worker until all messages are handled; return each subscription's status and data."""
    async with App(":memory:", EXAMPLE / "workers") as app, app.workers.background():
        assert app.registry.problems == ()

        async def all_handled() -> bool:
            counts = [row.urn for row in await app.entities.list()]
            return sorted(counts) == sorted(EXPECTED) and sum(
                [(await app.entities.get(urn)).handled for urn in counts]
            ) == len(MESSAGES)

        await until(all_handled, 60)
        views = [await app.entities.get(urn) for urn in EXPECTED]
        return {view.urn: (view.status, view.data) for view in views}


@pytest.mark.spec("002-2.1", "002-2.2", "002-4.1", "002-4.2")
async def test_messages_from_node_by_bullmq(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = redis_server.url()
    monkeypatch.setenv("MESSAGING", "bullmq")
    monkeypatch.setenv("QUEUES_URL", url)
    script = installed(ROOT / "tests" / "interop", "peer.mjs").with_name("subscriptions.mjs")
    script.write_bytes((EXAMPLE / "producer.mjs").read_bytes())
    process = await asyncio.create_subprocess_exec(node(), str(script), url, stdin=asyncio.subprocess.PIPE)
    await process.communicate((EXAMPLE / "messages.jsonl").read_bytes())
    assert process.returncode == 0
    assert await read_subscriptions() == EXPECTED


async def test_the_same_messages_by_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = kafka_server.Broker()
    broker.create("billing", 3)
    monkeypatch.setenv("MESSAGING", "kafka")
    monkeypatch.setenv("BROKERS", broker.address)
    producer = AIOKafkaProducer(bootstrap_servers=broker.address)
    await producer.start()
    for one in MESSAGES:
        data = {key: one[key] for key in ("urn", "payload") if key in one}
        headers = [("name", one["name"].encode())]
        await producer.send_and_wait("billing", json.dumps(data).encode(), one["urn"].encode(), headers=headers)
    await producer.stop()
    try:
        assert await read_subscriptions() == EXPECTED
    finally:
        broker.stop()


async def test_without_messaging_there_is_no_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESSAGING", raising=False)
    async with App(":memory:", EXAMPLE / "workers") as app, app.workers.background():
        assert app.registry.problems == ()
        await app.entities.emit("urn:subscription:ada", "cancelled")
        await app.entities.wait_for("urn:subscription:ada", "cancelled", timeout=30)
