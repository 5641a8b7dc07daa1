"""What can happen to a Redis: killed and started again, connections cut, scripts forgotten, out of memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faultkit.length import FULL

from penstock import App, Context, flow, job, step
from penstock.core.errors import StoreFull, StoreUnavailable
from penstock.testing.history import check, read_history
from penstock.testing.until import until
from redis_server import Server

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]
RESTARTS = 100 if FULL else 8
PATIENCE = 60


@flow("trip", emits=["packed"])
async def pack(input: Any, ctx: Context) -> None:
    await ctx.emit("packed", input)


@step(flow="trip", on="packed")
async def travel(input: Any) -> Any:
    return input


@job(queue="parcels")
async def parcel(input: Any) -> Any:
    return input


HANDLERS = [pack, travel, parcel]


@pytest.fixture
def aof(tmp_path: Path) -> Iterator[Server]:
    """A server that keeps what it acknowledged."""
    one = Server(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    try:
        yield one
    finally:
        one.stop()


async def _ended(app: App, runs: list[str]) -> bool:
    rows = [await app.store.run(run) for run in runs]
    return all(row is not None and row.closed for row in rows)


async def test_a_server_that_is_killed_loses_nothing_it_acknowledged(aof: Server, tell: Callable[[str], None]) -> None:
    acknowledged: list[str] = []
    rng = random.Random(5)
    async with App(aof.url(), handlers=HANDLERS, lease="2s") as app:
        stop = asyncio.Event()

        async def produce() -> None:
            n = 0
            while not stop.is_set():
                n += 1
                try:
                    acknowledged.append(await app.start("trip", n, idempotency_key=f"trip-{n}"))
                except StoreUnavailable:
                    await asyncio.sleep(0.02)

        async with app.working(concurrency=10):
            producing = asyncio.create_task(produce())
            for _ in range(RESTARTS):
                sent = len(acknowledged)
                await until(lambda sent=sent: len(acknowledged) > sent + rng.randrange(5, 60), PATIENCE)  # type: ignore[misc]
                await asyncio.to_thread(aof.kill)
                await asyncio.to_thread(aof.start)
            stop.set()
            await producing
            await until(lambda: _ended(app, acknowledged), PATIENCE)
        assert await app.store.loose_runs() == []
        problems = check(await read_history(app.store))
    tell(f"{RESTARTS} restarts, {len(acknowledged)} runs acknowledged, {len(problems)} problems")
    assert problems == []


async def test_connections_that_are_cut_and_scripts_that_are_forgotten(tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        async with App(server.url(), handlers=HANDLERS, lease="5s") as app, app.working(concurrency=10):
            runs: list[str] = []
            for n in range(60):
                while True:
                    try:
                        runs.append(await app.start("trip", n, idempotency_key=f"trip-{n}"))
                        break
                    except StoreUnavailable:
                        continue
                if n % 3 == 0:
                    await asyncio.to_thread(server.command, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                if n % 5 == 0:
                    await asyncio.to_thread(server.command, "SCRIPT", "FLUSH")
                if n % 7 == 0:
                    await asyncio.to_thread(server.command, "CLIENT", "KILL", "TYPE", "pubsub")
            await until(lambda: _ended(app, runs), PATIENCE)
            assert check(await read_history(app.store)) == []
    finally:
        server.stop()


async def test_out_of_memory_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    server = Server(tmp_path, "--maxmemory-policy", "noeviction")
    try:
        async with App(server.url(), handlers=HANDLERS) as app:
            first = await app.enqueue("parcels", 1)
            await asyncio.to_thread(server.command, "CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(StoreFull, match="maxmemory"):
                await app.enqueue("parcels", 2, id="second")
            async with app.working():
                await asyncio.to_thread(server.command, "CONFIG", "SET", "maxmemory", "0")
                assert await app.job_result(first, timeout=PATIENCE) == 1
                await app.enqueue("parcels", 2, id="second")
                assert await app.job_result("second", timeout=PATIENCE) == 2
    finally:
        server.stop()
