"""An append-only file that is cut anywhere, as after a loss of power, holds each unit whole or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit import redis_mutants, worker_flows
from faultkit.config import FULL

from penstock import App
from penstock.testing.history import check, read_history
from penstock.testing.until import until
from redis_server import Server, repair_aof

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]
CUTS, WORKED_OUT = (300, 40) if FULL else (8, 1)  # number of cuts, and of those after which all work is finished
LEASE = "1s"  # jobs that were active in the file come back after this
PERSISTENCE = ("--appendonly", "yes", "--appendfsync", "everysec", "--aof-load-truncated", "no")


async def _log_of_flows(folder: Path) -> tuple[Path, str]:
    """Run flows; return the append-only file of their server, and their database."""
    server = Server(folder, *PERSISTENCE)
    url = server.url()
    try:
        async with App(url, handlers=worker_flows.HANDLERS, lease=LEASE) as app, app.workers.background(concurrency=20):
            for n in range(36):
                await app.start(worker_flows.FLOWS[n % 3], {"n": n})
            await until(lambda: _is_idle(app), 60)
    finally:
        server.kill()
    logs = [path for path in folder.rglob("*.aof") if path.stat().st_size]
    return max(logs, key=lambda path: path.stat().st_size), url.rpartition("/")[2]


async def _problems(log: Path, at: int, db: str, folder: Path, work: bool) -> list[str]:
    """Return what is wrong in a store whose file is cut there; with `work`, also after all work and another restart."""
    whole = log.read_bytes()
    log.write_bytes(whole[:at])
    server = _repaired_server(folder)
    try:
        async with _app(server, db) as app:
            found = [f"loose: {run}" for run in await app.store.stuck_runs()]
            found += map(str, check(await read_history(app.store, triggers=worker_flows.TRIGGERS, is_finished=False)))
            if work and not found:
                async with app.workers.background(concurrency=20):
                    await until(lambda: _is_idle(app), 60)
        if work and not found:
            server.kill()
            server.start()
            async with _app(server, db) as app:
                found += map(str, check(await read_history(app.store, triggers=worker_flows.TRIGGERS)))
        return found
    finally:
        server.kill()
        log.write_bytes(whole)


def _app(server: Server, db: str) -> App:
    return App(f"redis://127.0.0.1:{server.port}/{db}", handlers=worker_flows.HANDLERS, lease=LEASE)


def _repaired_server(folder: Path) -> Server:
    """Start a server on a file that redis-check-aof has repaired, as docs/redis.md requires."""
    repair_aof(folder)
    return Server(folder, *PERSISTENCE)


async def _is_idle(app: App) -> bool:
    return not await app.runs.list(status="open", limit=1)


def _offsets(log: Path, count: int) -> list[int]:
    return random.Random(11).choices(range(log.stat().st_size), k=count)


async def test_a_cut_file_holds_no_torn_unit(tmp_path: Path, show: Callable[[str], None]) -> None:
    log, db = await _log_of_flows(tmp_path)
    offsets = _offsets(log, CUTS)
    for n, at in enumerate(offsets):
        assert await _problems(log, at, db, tmp_path, n < WORKED_OUT) == [], f"cut at byte {at}"
    show(f"{CUTS} cuts of a log of {log.stat().st_size} bytes, no torn unit")


async def test_the_cuts_catch_units_in_two_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, show: Callable[[str], None]
) -> None:
    with monkeypatch.context() as patch:
        redis_mutants.split_units(patch)
        log, db = await _log_of_flows(tmp_path)
    found: list[str] = []
    for at in _offsets(log, 60):
        found = found or await _problems(log, at, db, tmp_path, False)
    assert found, "split_units survived"
    show(f"split_units: caught by cuts: {found[0]}")
