"""How long a scrape of `/api/_metrics` takes on a store that has finished many jobs."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import httpx

from . import servers
from .finished_jobs import QUEUES, fill
from .http_server import describe, read_cpu, serve

SCRAPES = 100


async def measure_scrape(args: argparse.Namespace) -> None:
    """Scrape a store with many finished jobs, and an empty one for comparison."""
    for store in args.stores:
        with tempfile.TemporaryDirectory() as name:
            Path(name).chmod(0o755)  # Postgres runs as another user
            with servers.open_target(store, Path(name)) as target:
                for jobs in (0, args.jobs):
                    url = target.reset() or f"sqlite:///{name}/{jobs}.db"
                    await fill(url, jobs)
                    shown = await _scrape(url, jobs + 3 * QUEUES)
                    print(f"scrape of {store} with {jobs:,} finished jobs in {QUEUES} queues: {shown}", flush=True)
    print("goal of each: < 50 ms")


async def _scrape(url: str, expected: int) -> str:
    async with serve(url) as bench, httpx.AsyncClient(timeout=60) as client:
        times, before = [], read_cpu(bench.pid)
        for _ in range(SCRAPES):
            start = time.perf_counter()
            answer = await client.get(f"http://127.0.0.1:{bench.port}/api/_metrics")
            times.append(time.perf_counter() - start)
        cost = (read_cpu(bench.pid) - before) / SCRAPES * 1000
    found = [line for line in answer.text.splitlines() if line.startswith("penstock_queue_jobs{")]
    counted = sum(float(line.rpartition(" ")[2]) for line in found)
    assert counted == expected, f"{counted:.0f} jobs counted, not {expected}"
    return f"first {times[0] * 1000:.1f} ms, {describe(times)}, {cost:.1f} ms of CPU in the server"
