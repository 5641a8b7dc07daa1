"""The bridge to BullMQ keeps the contract of bridges, on a Redis that is not the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from bullmq import Queue

import redis_server
from penstock.messaging.bullmq import BullMQ
from penstock.testing.contracts import BridgeContract

QUICK = {"poll": "20ms", "retry": {"attempts": 3, "backoff": {"type": "fixed", "delayMs": 1}}}


class TestBullMQ(BridgeContract):
    @pytest.fixture(autouse=True)
    def _redis(self) -> None:
        self.url = redis_server.url()

    def make_bridge(self, consume: Mapping[str, Any] | None = None, **options: Any) -> BullMQ:
        return BullMQ(self.url, consume=consume, **{**QUICK, **options})

    def make_unreachable_bridge(self) -> BullMQ:
        return BullMQ(f"redis://127.0.0.1:{redis_server.free_port()}/0")

    async def make_queue(self, name: str) -> None:
        """BullMQ makes a queue with its first job."""

    async def send(self, queue: str, name: str, data: Any) -> None:
        client = Queue(queue, {"connection": self.url})
        await client.add(name, data, {})
        await client.close()

    async def read_dead_letters(self, queue: str) -> list[tuple[str, Any]]:
        client = Queue(f"{queue}-dlq", {"connection": self.url})
        jobs = await client.getJobs(["waiting"])
        await client.close()
        return [(job.name, job.data["originalData"]) for job in jobs]

    async def is_done(self, queue: str) -> bool:
        client = Queue(queue, {"connection": self.url})
        counts = await client.getJobCounts("waiting", "active", "delayed", "completed", "failed")
        await client.close()
        return not (counts["waiting"] or counts["active"] or counts["delayed"]) and bool(
            counts["completed"] or counts["failed"]
        )
