"""Buyers and relays are killed in the middle of what they do: there is a run for each order, and an order for each run."""

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
from faultkit.buyer import shop
from faultkit.length import FULL, HERE

from penstock import App
from penstock.testing import until

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]

KILLS = 40 if FULL else 2
MORE = 15  # orders at least before the next kill
ELSEWHERE = (backends.REDIS, backends.SQLITE_FILE) if FULL else (backends.REDIS,)
TEST_TIMEOUT_S = 60
Tell = Callable[[str], None]


class Child:
    """A process of `faultkit.buyer`, which ends by being killed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, *args: str) -> Child:
        return cls(await asyncio.create_subprocess_exec(sys.executable, "-m", "faultkit.buyer", *args, cwd=HERE))

    async def kill(self) -> None:
        assert self._process.returncode is None, "it ended by itself: see what it said"
        self._process.kill()
        await self._process.wait()


async def told(app: App) -> list[str]:
    return [event.data for event in await app.events.read_all("nq:global")]


async def runs(app: App) -> list[str]:
    found: list[str] = []
    while page := await app.runs.list(before=found[-1] if found else None, limit=500):
        found += [row.id for row in page]
    return found


async def check(app: App, orders: list[str]) -> None:
    assert sorted(await runs(app)) == sorted(orders)
    assert sorted(await told(app)) == sorted(orders)
    for order in orders:
        assert await app.result(order, timeout=TEST_TIMEOUT_S) == order


async def test_buyers_in_the_database_of_the_store(tmp_path: Path, tell: Tell) -> None:
    url = backends.POSTGRES.url(tmp_path)
    theirs = await asyncpg.connect(url.partition("?")[0])
    await theirs.execute("DROP TABLE IF EXISTS orders; CREATE TABLE orders (id text)")

    async def count() -> int:
        return int(await theirs.fetchval("SELECT count(*) FROM orders"))

    async with App(url, handlers=[shop]) as app, app.workers.background():
        for kill in range(KILLS):
            buyer, before = await Child.start(url, f"buyer-{kill}", "--orders", url.partition("?")[0]), await count()
            await until(lambda before=before: _more(count, before), TEST_TIMEOUT_S)
            await asyncio.sleep(random.uniform(0, 0.01))  # anywhere in a transaction
            await buyer.kill()
        await until(lambda: _idle(theirs), TEST_TIMEOUT_S)  # the server has noticed that the last one is gone
        orders = [row["id"] for row in await theirs.fetch("SELECT id FROM orders")]
        await check(app, orders)
    await theirs.close()
    tell(f"{KILLS} kills, {len(orders)} orders")


@pytest.mark.parametrize("backend", ELSEWHERE, ids=lambda backend: backend.name)
async def test_buyers_and_relays(backend: Backend, tmp_path: Path, tell: Tell) -> None:
    url, file = backend.url(tmp_path), str(tmp_path / "orders.db")
    theirs = sqlite3.connect(file, timeout=TEST_TIMEOUT_S)
    theirs.execute("PRAGMA journal_mode = WAL")
    theirs.execute("CREATE TABLE orders (id text)")

    async with App(url, handlers=[shop]) as app, app.workers.background():
        await app.outbox.create(theirs)

        async def arrived() -> int:
            return len(await told(app))

        for kill in range(KILLS):
            relay, before = await Child.start(url, "relay", "--orders", file, "--relay"), await arrived()
            buyer = await Child.start(url, f"buyer-{kill}", "--orders", file)
            await until(lambda before=before: _more(arrived, before), TEST_TIMEOUT_S)
            await asyncio.sleep(random.uniform(0, 0.01))
            await asyncio.gather(buyer.kill(), relay.kill())
        again = await app.outbox.drain(f"sqlite:///{file}")
        orders = [id for (id,) in theirs.execute("SELECT id FROM orders")]
        await check(app, orders)
    theirs.close()
    tell(f"{backend.name}: {KILLS} kills, {len(orders)} orders, {again} rows left to the last relay")


async def _more(count: Callable[[], Any], before: int) -> bool:
    return bool(await count() >= before + MORE)


async def _idle(theirs: Any) -> bool:
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
    )
    return not await theirs.fetchval(others)
