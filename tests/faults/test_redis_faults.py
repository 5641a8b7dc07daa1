"""What can happen to a Redis: killed and started again, connections cut, scripts forgotten, out of memory."""

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
from faultkit.length import FULL
from faultkit.pausing import pause_workers
from faultkit.trouble import Load, under_way

from penstock import App, job
from penstock.core.errors import StoreFull
from penstock.testing.until import until
from redis_server import Server

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]
RESTARTS, STORMS, SHORTAGES, ROLLBACKS = (100, 400, 60, 60) if FULL else (8, 12, 1, 3)
PATIENCE = 60
Tell = Callable[[str], None]


@pytest.fixture
def aof(tmp_path: Path) -> Iterator[Server]:
    """A server that keeps what it acknowledged."""
    one = Server(tmp_path, "--appendonly", "yes", "--appendfsync", "always", "--aof-load-truncated", "no")
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Server]:
    """A server whose memory is all there is."""
    one = Server(tmp_path, "--maxmemory-policy", "noeviction")
    try:
        yield one
    finally:
        one.stop()


async def _kill_again_and_again(server: Server, load: Load, times: int) -> float:
    """Gives the longest that nothing was acknowledged after the server was there again."""
    rng, longest = random.Random(5), 0.0
    for _ in range(times):
        await load.more(rng.randrange(2, 12), PATIENCE)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.mend)
        await asyncio.to_thread(server.start)
        back = time.monotonic()
        await load.more(1, PATIENCE)
        longest = max(longest, time.monotonic() - back)
    return longest


async def test_a_server_that_is_killed_loses_nothing_it_acknowledged(aof: Server, tmp_path: Path, tell: Tell) -> None:
    async with under_way(aof.url(), tmp_path) as load:
        longest = await _kill_again_and_again(aof, load, RESTARTS)
    tell(f"{RESTARTS} restarts, {load}; at the latest work went on after {longest:.1f} s")
    assert load.problems == []


async def test_the_kills_notice_a_server_that_keeps_nothing(plain: Server, tmp_path: Path) -> None:
    async with under_way(plain.url(), tmp_path, patience=3) as load:
        await _kill_again_and_again(plain, load, 1)
    assert any(problem.startswith("lost:") for problem in load.problems)


async def _go_back_again_and_again(server: Server, load: Load, times: int) -> None:
    """The server is killed some time after it saved what it had, and comes back with that."""
    for _ in range(times):
        await load.more(5, PATIENCE)
        await asyncio.to_thread(server.command, "SAVE")
        await load.more(25, PATIENCE)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)


async def test_a_server_that_comes_back_without_its_last_writes(plain: Server, tmp_path: Path, tell: Tell) -> None:
    async with under_way(plain.url(), tmp_path, forgetful=True) as load:
        await _go_back_again_and_again(plain, load, ROLLBACKS)
    tell(f"{ROLLBACKS} times back to what was saved, {load}")
    assert load.problems == []


async def test_what_is_known_of_lost_writes_is_noticed(
    plain: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tell: Tell
) -> None:
    redis_mutants.memory_outlives_the_server(monkeypatch)
    async with under_way(plain.url(), tmp_path, forgetful=True, patience=1) as load:
        await _go_back_again_and_again(plain, load, 2)
    assert load.problems, "memory_outlives_the_server survived"
    tell(f"memory_outlives_the_server: caught by going back: {load.problems[0]}")


async def _storm(server: Server, load: Load, times: int) -> None:
    """Every connection is cut, and now and then the scripts are forgotten, wherever the work happens to be."""
    rng = random.Random(6)
    for n in range(times):
        await load.more(1, PATIENCE)
        await asyncio.sleep(rng.random() * 0.03)  # anywhere in a step
        for kind in ("normal", "pubsub"):
            await asyncio.to_thread(server.command, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        if n % 5 == 0:
            await asyncio.to_thread(server.command, "SCRIPT", "FLUSH")


async def test_storms_that_cut_every_connection(plain: Server, tmp_path: Path, tell: Tell) -> None:
    async with under_way(plain.url(), tmp_path) as load:
        await _storm(plain, load, STORMS)
    tell(f"{STORMS} storms, {load}")
    assert load.problems == []


@pytest.mark.skipif(not FULL, reason="with PENSTOCK_FAULTS=full")
async def test_the_storms_notice_a_torn_commit(
    plain: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tell: Tell
) -> None:
    redis_mutants.split_units(monkeypatch)
    async with under_way(plain.url(), tmp_path, patience=1) as load:
        await _storm(plain, load, 6)
    assert load.problems, "split_units survived"
    tell(f"split_units: caught by storms: {load.problems[0]}")


@pytest.mark.skipif(not FULL, reason="with PENSTOCK_FAULTS=full")
async def test_the_pauses_notice_a_missing_fence(tmp_path: Path, tell: Tell) -> None:
    report = await pause_workers(REDIS, tmp_path, pauses=6, jobs=120, seed=5, mutant="redis:no_fence")
    assert report.late_committed, "no_fence survived"
    tell(f"no_fence: caught by {report.pauses} pauses: {report.late_committed} late commits taken")


class Patient:
    """A handler that ends when it is told to, and counts how often it began."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()

    def job(self) -> Callable[..., Any]:
        @job(queue="parcels")
        async def parcel(input: Any) -> Any:
            self.begun += 1
            await self.go_on.wait()
            return input

        return parcel


async def _out_of_memory_under_work(server: Server, lease: str) -> Patient:
    """Memory runs out while a handler is at work; it ends before there is room again."""
    patient = Patient()
    async with App(server.url(), handlers=[patient.job()], lease=lease) as app, app.working():
        first = await app.enqueue("parcels", 1)
        await until(lambda: patient.begun, PATIENCE)
        await asyncio.to_thread(server.command, "CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreFull, match="maxmemory"):
            await app.enqueue("parcels", 2, id="second")
        patient.go_on.set()
        with pytest.raises(StoreFull):
            await app.enqueue("parcels", 2, id="second")
        await asyncio.to_thread(server.command, "CONFIG", "SET", "maxmemory", "0")
        assert await app.job_result(first, timeout=PATIENCE) == 1
        await app.enqueue("parcels", 2, id="second")
        assert await app.job_result("second", timeout=PATIENCE) == 2
    return patient


async def test_out_of_memory_is_said_and_work_in_hand_is_kept(plain: Server) -> None:
    assert (await _out_of_memory_under_work(plain, "30s")).begun == 2


async def test_work_in_hand_that_is_dropped_when_memory_is_out_is_noticed(
    plain: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_mutants.dropped_when_full(monkeypatch)
    assert (await _out_of_memory_under_work(plain, "1s")).begun > 2


async def test_memory_that_runs_out_again_and_again(plain: Server, tmp_path: Path, tell: Tell) -> None:
    async with under_way(plain.url(), tmp_path) as load:
        for _ in range(SHORTAGES):
            await load.more(10, PATIENCE)
            refused = load.refused
            await asyncio.to_thread(plain.command, "CONFIG", "SET", "maxmemory", "1")
            await until(lambda refused=refused: load.refused > refused, PATIENCE)  # type: ignore[misc]
            await asyncio.to_thread(plain.command, "CONFIG", "SET", "maxmemory", "0")
    tell(f"{SHORTAGES} shortages, {load}")
    assert load.problems == []
