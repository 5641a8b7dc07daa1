"""Clients and relays are killed during their work: there is one run per order, and one order per run."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from faultkit import backends
from faultkit.backends import Backend
from faultkit.config import FAULTS_DIR, FULL
from faultkit.order_process import shop

from penstock import App
from penstock.testing import until

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]

KILLS = 40 if FULL else 2
MIN_ORDERS = 15  # before the next kill
OTHER_STORES = (backends.REDIS, backends.SQLITE_FILE) if FULL else (backends.REDIS,)
TEST_TIMEOUT_S = 60
Show = Callable[[str], None]


class Child:
    """A process of `faultkit.order_process`, which the test kills."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, *args: str) -> Child:
        return cls(
            await asyncio.create_subprocess_exec(sys.executable, "-m", "faultkit.order_process", *args, cwd=FAULTS_DIR)
        )

    async def kill(self) -> None:
        assert self._process.returncode is None, "it ended by itself: see its output"
        self._process.kill()
        await self._process.wait()


async def emitted(app: App) -> list[str]:
    return [event.data for event in await app.events.read_all("nq:global")]


async def runs(app: App) -> list[str]:
    found: list[str] = []
    while page := await app.runs.list(before=found[-1] if found else None, limit=500):
        found += [row.id for row in page]
    return found


async def check(app: App, orders: list[str]) -> None:
    assert sorted(await runs(app)) == sorted(orders)
    assert sorted(await emitted(app)) == sorted(orders)
    for order in orders:
        assert await app.result(order, timeout=TEST_TIMEOUT_S) == order


async def test_orders_in_the_database_of_the_store(tmp_path: Path, show: Show) -> None:
    url = backends.POSTGRES.url(tmp_path)
    connection = await asyncpg.connect(url.partition("?")[0])
    await connection.execute("DROP TABLE IF EXISTS orders; CREATE TABLE orders (id text)")

    async def count() -> int:
        return int(await connection.fetchval("SELECT count(*) FROM orders"))

    async with App(url, handlers=[shop]) as app, app.workers.background():
        for kill in range(KILLS):
            client, before = await Child.start(url, f"client-{kill}", "--orders", url.partition("?")[0]), await count()
            await until(lambda before=before: _has_more(count, before), TEST_TIMEOUT_S)
            await asyncio.sleep(random.uniform(0, 0.01))  # anywhere in a transaction
            await client.kill()
        await until(lambda: _is_idle(connection), TEST_TIMEOUT_S)  # the server has noticed the last kill
        orders = [row["id"] for row in await connection.fetch("SELECT id FROM orders")]
        await check(app, orders)
    await connection.close()
    show(f"{KILLS} kills, {len(orders)} orders")


@pytest.mark.parametrize("backend", OTHER_STORES, ids=lambda backend: backend.name)
async def test_orders_and_relays(backend: Backend, tmp_path: Path, show: Show) -> None:
    url, file = backend.url(tmp_path), str(tmp_path / "orders.db")
    connection = sqlite3.connect(file, timeout=TEST_TIMEOUT_S)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE orders (id text)")

    async with App(url, handlers=[shop]) as app, app.workers.background():
        await app.outbox.create(connection)

        async def arrived() -> int:
            return len(await emitted(app))

        for kill in range(KILLS):
            relay, before = await Child.start(url, "relay", "--orders", file, "--relay"), await arrived()
            client = await Child.start(url, f"client-{kill}", "--orders", file)
            await until(lambda before=before: _has_more(arrived, before), TEST_TIMEOUT_S)
            await asyncio.sleep(random.uniform(0, 0.01))
            await asyncio.gather(client.kill(), relay.kill())
        again = await app.outbox.drain(f"sqlite:///{file}")
        orders = [id for (id,) in connection.execute("SELECT id FROM orders")]
        await check(app, orders)
    connection.close()
    show(f"{backend.name}: {KILLS} kills, {len(orders)} orders, {again} rows left to the last relay")


async def _has_more(count: Callable[[], Any], before: int) -> bool:
    return bool(await count() >= before + MIN_ORDERS)


async def _is_idle(connection: Any) -> bool:
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
    )
    return not await connection.fetchval(others)
