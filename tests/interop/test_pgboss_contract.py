"""The bridge to pg-boss keeps the contract of bridges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import postgres_server
from penstock.messaging.pgboss import PgBoss
from penstock.testing.contracts import BridgeContract

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.asyncio(loop_scope="module")]


class TestPgBoss(BridgeContract):
    @pytest.fixture(autouse=True)
    def _boss(self, boss: Any) -> None:
        self.boss = boss

    def make_bridge(self, consume: Mapping[str, Any] | None = None, **options: Any) -> PgBoss:
        return PgBoss(postgres_server.server().url().partition("?")[0], consume=consume, poll="20ms", **options)

    def make_unreachable_bridge(self) -> PgBoss:
        return PgBoss(f"postgresql://postgres@127.0.0.1:{postgres_server.free_port()}/postgres")

    async def make_queue(self, name: str) -> None:
        await self.boss.call("create", queue=f"{name}-dlq")
        await self.boss.call(
            "create", queue=name, options={"deadLetter": f"{name}-dlq", "retryLimit": 2, "retryDelay": 0}
        )

    async def send(self, queue: str, name: str, data: Any) -> None:
        await self.boss.call("send", queue=queue, data=data)

    async def read_dead_letters(self, queue: str) -> list[tuple[str, Any]]:
        return [("", one["data"]) for one in await self.boss.call("jobs", queue=f"{queue}-dlq")]

    async def is_done(self, queue: str) -> bool:
        jobs = await self.boss.call("jobs", queue=queue)
        return bool(jobs) and all(one["state"] in ("completed", "failed") for one in jobs)
