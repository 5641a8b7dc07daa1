"""Two worker processes that are killed again and again: order is kept, nothing is lost, nothing is applied twice.

`make faults` runs it at full size.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from kill_worker import Ledger

from penstock.entities.record import decode
from penstock.testing import until

IS_FULL = os.environ.get("PENSTOCK_FAULTS") == "full"
EVENTS, URNS, KILLS = (10_000, 500, 100) if IS_FULL else (200, 10, 4)
PROGRAM = Path(__file__).with_name("kill_worker.py")
WAIT_S = 120 + EVENTS / 20
pytestmark = pytest.mark.timeout(4 * WAIT_S if IS_FULL else 300)


async def start(url: str) -> asyncio.subprocess.Process:
    worker = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert worker.stdout is not None
    await worker.stdout.readline()
    return worker


async def stop(worker: asyncio.subprocess.Process) -> None:
    if worker.returncode is None:
        worker.kill()
    await worker.wait()


async def test_kills_lose_nothing_and_repeat_nothing(shared: Any, shared_url: str) -> None:
    async with shared(Ledger, lease="1s") as app:
        workers = [await start(shared_url), await start(shared_url)]
        try:
            kills = asyncio.create_task(kill_often(app, shared_url, workers))
            for first in range(0, EVENTS, URNS):  # one event of each urn at a time: their order is known
                await asyncio.gather(*(emit(app, n) for n in range(first, min(first + URNS, EVENTS))))
            await kills
            await until(lambda: is_done(app), WAIT_S)
        finally:
            for worker in workers:
                await stop(worker)
        for n in range(URNS):
            assert (await app.entities.data(f"ledger-{n}"))["seen"] == list(range(n, EVENTS, URNS)), f"ledger-{n}"
        assert await app.list_dead_letters() == []


async def emit(app: Any, n: int) -> None:
    await app.entities.emit(f"ledger-{n % URNS}", "add", n, key=f"k{n}")


async def kill_often(app: Any, url: str, workers: list[asyncio.subprocess.Process]) -> None:
    """Kill a worker each time some more events are done, and start another one."""
    for kill in range(KILLS):
        goal = EVENTS * (kill + 1) // (KILLS + 2)
        await until(lambda goal=goal: has_handled(app, goal), WAIT_S)
        await stop(workers[kill % 2])
        workers[kill % 2] = await start(url)


async def has_handled(app: Any, goal: int) -> bool:
    return await count_handled(app) >= goal


async def is_done(app: Any) -> bool:
    return await count_handled(app) == EVENTS


async def count_handled(app: Any) -> int:
    rows = await app.store.runs(flow="ledger", limit=1000)
    return sum(decode(row.record).handled for row in rows)
