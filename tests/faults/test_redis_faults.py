"""Faults of a Redis server: killed and restarted, connections cut, scripts flushed, out of memory."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faultkit import redis_mutants
from faultkit.backends import REDIS
from faultkit.config import FULL
from faultkit.load import Load, run_load
from faultkit.pause_workers import pause_workers

from penstock import App, job
from penstock.core.errors import StoreFull
from penstock.testing.until import until
from redis_server import Server

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]
RESTARTS, CUTS, SHORTAGES, ROLLBACKS = (100, 400, 60, 60) if FULL else (8, 12, 1, 3)
TEST_TIMEOUT_S = 60
Show = Callable[[str], None]


@pytest.fixture
def aof(tmp_path: Path) -> Iterator[Server]:
    """Start a server that persists every acknowledged write."""
    one = Server(tmp_path, "--appendonly", "yes", "--appendfsync", "always", "--aof-load-truncated", "no")
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture
def volatile(tmp_path: Path) -> Iterator[Server]:
    """Start a server without persistence."""
    one = Server(tmp_path, "--maxmemory-policy", "noeviction")
    try:
        yield one
    finally:
        one.stop()


async def _kill_repeatedly(server: Server, load: Load, times: int) -> float:
    """Return the longest time without an acknowledged start after a restart."""
    rng, longest = random.Random(5), 0.0
    for _ in range(times):
        await load.wait_for_starts(rng.randrange(2, 12), TEST_TIMEOUT_S)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.repair_aof)
        await asyncio.to_thread(server.start)
        back = time.monotonic()
        await load.wait_for_starts(1, TEST_TIMEOUT_S)
        longest = max(longest, time.monotonic() - back)
    return longest


async def test_a_killed_server_loses_no_acknowledged_write(aof: Server, tmp_path: Path, show: Show) -> None:
    async with run_load(aof.url(), tmp_path) as load:
        longest = await _kill_repeatedly(aof, load, RESTARTS)
    show(f"{RESTARTS} restarts, {load}; at the latest work went on after {longest:.1f} s")
    assert load.problems == []


async def test_the_kills_catch_a_server_without_persistence(volatile: Server, tmp_path: Path) -> None:
    async with run_load(volatile.url(), tmp_path, timeout=3) as load:
        await _kill_repeatedly(volatile, load, 1)
    assert any(problem.startswith("lost:") for problem in load.problems)


async def _rewind_repeatedly(server: Server, load: Load, times: int) -> None:
    """Kill the server some time after a snapshot, and restart it from that."""
    for _ in range(times):
        await load.wait_for_starts(5, TEST_TIMEOUT_S)
        await asyncio.to_thread(server.command, "SAVE")
        await load.wait_for_starts(25, TEST_TIMEOUT_S)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)


async def test_a_server_that_restarts_from_an_old_snapshot(volatile: Server, tmp_path: Path, show: Show) -> None:
    async with run_load(volatile.url(), tmp_path, may_lose_writes=True) as load:
        await _rewind_repeatedly(volatile, load, ROLLBACKS)
    show(f"{ROLLBACKS} times back to what was saved, {load}")
    assert load.problems == []


async def test_the_rewinds_catch_cached_versions_of_lost_writes(
    volatile: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    redis_mutants.run_cache_outlives_the_server(monkeypatch)
    async with run_load(volatile.url(), tmp_path, may_lose_writes=True, timeout=1) as load:
        await _rewind_repeatedly(volatile, load, 2)
    assert load.problems, "run_cache_outlives_the_server survived"
    show(f"run_cache_outlives_the_server: caught by going back: {load.problems[0]}")


async def _cut_connections(server: Server, load: Load, times: int) -> None:
    """Cut every connection, and now and then flush the scripts, at random moments."""
    rng = random.Random(6)
    for n in range(times):
        await load.wait_for_starts(1, TEST_TIMEOUT_S)
        await asyncio.sleep(rng.random() * 0.03)  # at any moment of a step
        for kind in ("normal", "pubsub"):
            await asyncio.to_thread(server.command, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        if n % 5 == 0:
            await asyncio.to_thread(server.command, "SCRIPT", "FLUSH")


async def test_cut_connections(volatile: Server, tmp_path: Path, show: Show) -> None:
    async with run_load(volatile.url(), tmp_path) as load:
        await _cut_connections(volatile, load, CUTS)
    show(f"{CUTS} cuts, {load}")
    assert load.problems == []


@pytest.mark.skipif(not FULL, reason="with PENSTOCK_FAULTS=full")
async def test_the_cut_connections_catch_a_torn_commit(
    volatile: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    redis_mutants.split_units(monkeypatch)
    async with run_load(volatile.url(), tmp_path, timeout=1) as load:
        await _cut_connections(volatile, load, 6)
    assert load.problems, "split_units survived"
    show(f"split_units: caught by cuts: {load.problems[0]}")


@pytest.mark.skipif(not FULL, reason="with PENSTOCK_FAULTS=full")
async def test_the_pauses_catch_a_missing_fence(tmp_path: Path, show: Show) -> None:
    report = await pause_workers(REDIS, tmp_path, pauses=6, jobs=120, seed=5, mutant="redis:no_fence")
    assert report.late_committed, "no_fence survived"
    show(f"no_fence: caught by {report.pauses} pauses: {report.late_committed} late commits taken")


class BlockedHandler:
    """A handler that ends when the test allows it, and counts its starts."""

    def __init__(self) -> None:
        self.starts = 0
        self.may_end = asyncio.Event()

    def job(self) -> Callable[..., Any]:
        @job(queue="parcels")
        async def parcel(input: Any) -> Any:
            self.starts += 1
            await self.may_end.wait()
            return input

        return parcel


async def _run_out_of_memory(server: Server, lease: str) -> BlockedHandler:
    """Let memory run out while a handler runs; it ends before there is memory again."""
    handler = BlockedHandler()
    async with App(server.url(), handlers=[handler.job()], lease=lease) as app, app.workers.background():
        first = await app.enqueue("parcels", 1)
        await until(lambda: handler.starts, TEST_TIMEOUT_S)
        await asyncio.to_thread(server.command, "CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreFull, match="maxmemory"):
            await app.enqueue("parcels", 2, key="second")
        handler.may_end.set()
        with pytest.raises(StoreFull):
            await app.enqueue("parcels", 2, key="second")
        await asyncio.to_thread(server.command, "CONFIG", "SET", "maxmemory", "0")
        assert await app.jobs.result(first, timeout=TEST_TIMEOUT_S) == 1
        await app.enqueue("parcels", 2, key="second")
        assert await app.jobs.result("second", timeout=TEST_TIMEOUT_S) == 2
    return handler


async def test_out_of_memory_keeps_running_attempts(volatile: Server) -> None:
    assert (await _run_out_of_memory(volatile, "30s")).starts == 2


async def test_a_dropped_attempt_is_caught(volatile: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    redis_mutants.dropped_when_full(monkeypatch)
    assert (await _run_out_of_memory(volatile, "1s")).starts > 2


async def test_memory_runs_out_repeatedly(volatile: Server, tmp_path: Path, show: Show) -> None:
    async with run_load(volatile.url(), tmp_path) as load:
        for _ in range(SHORTAGES):
            await load.wait_for_starts(10, TEST_TIMEOUT_S)
            refused = load.refused
            await asyncio.to_thread(volatile.command, "CONFIG", "SET", "maxmemory", "1")
            await until(lambda refused=refused: load.refused > refused, TEST_TIMEOUT_S)  # type: ignore[misc]
            await asyncio.to_thread(volatile.command, "CONFIG", "SET", "maxmemory", "0")
    show(f"{SHORTAGES} shortages, {load}")
    assert load.problems == []
