"""A handler that holds the interpreter past its lease: its neighbours lose their leases with it, and must not pay."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit.backends import Backend

from penstock import App
from penstock.testing.until import until

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(120)]

NEIGHBOURS = 6
PROGRAM = """
import asyncio, ctypes, os, sys
from penstock import App, job

def record(text):
    fd = os.open(sys.argv[2], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(fd, f"{text}\\n".encode())
    os.close(fd)

@job(queue="blocker", retry=2)
def blocker(n):
    record("blocker")
    ctypes.PyDLL(None).usleep(1_800_000)  # PyDLL keeps the interpreter's lock

@job(queue="neighbour", retry=2)
async def neighbour(n, ctx):
    record(f"neighbour{n} {ctx.attempt}")
    await asyncio.sleep(0.3)
    return n

async def main():
    async with App(sys.argv[1], handlers=[blocker, neighbour], lease="600ms", max_crashes=2) as app:
        await app.workers.run(concurrency=8)

asyncio.run(main())
"""


async def test_neighbours_of_a_handler_that_holds_the_gil_complete(
    shared: Backend, tmp_path: Path, show: Callable[[str], None]
) -> None:
    url, log = shared.url(tmp_path), tmp_path / "executions"
    async with App(url, handlers=[]) as app:
        bad = await app.enqueue("blocker", 0)
        good = [await app.enqueue("neighbour", n) for n in range(NEIGHBOURS)]
        pipe = asyncio.subprocess.DEVNULL
        workers = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", PROGRAM, url, str(log), stderr=pipe, env=dict(os.environ)
            )
            for _ in range(2)
        ]
        try:

            async def has_ended() -> bool:
                rows = [await app.jobs.get(id) for id in (bad, *good)]
                return all(row.state in ("completed", "failed") for row in rows)

            await until(has_ended, 90)
            rows = [await app.jobs.get(id) for id in good]
            executions = Counter(line.split()[0] for line in log.read_text().splitlines())
            letters = [
                letter.original_job_id
                for queue in ("blocker", "neighbour")
                for _, letter in await app.dead_letters.list(queue)
            ]
            lost = await app.jobs.get(bad)
        finally:
            for worker in workers:
                worker.kill()
                await worker.wait()
    show(f"executions {dict(executions)}, crashes of the neighbours {[row.crashes for row in rows]}")
    assert [row.state for row in rows] == ["completed"] * NEIGHBOURS
    assert letters == [bad]
    assert lost.attempt == executions["blocker"]
    for n, row in enumerate(rows):
        assert executions[f"neighbour{n}"] <= 1 + row.crashes
        assert row.failures == 0
