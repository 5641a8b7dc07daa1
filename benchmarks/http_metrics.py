"""How long a scrape of `/api/_metrics` takes on a store that has finished many jobs."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import apsw
import httpx

from penstock import App

from .http_server import describe, read_cpu, serve

QUEUES = 50
SCRAPES = 100
ROWS_PER_TRANSACTION = 500_000
# Rows as a worker leaves them: a text id, a small input and a result.
FILL = """
WITH RECURSIVE n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
INSERT INTO jobs (id, queue, name, state, priority, due, attempt, created, finished, unit, opts, payload, result)
SELECT 'old-' || i, 'queue-' || (i % ?3), 'old', CASE i % 100 WHEN 0 THEN 5 ELSE 4 END, 0, 0, 1, ?4, ?4, 'u-' || i,
       x'7b7d', CAST('{"orderId":4711,"customer":"c-1042"}' AS BLOB), x'7b7d'
FROM n
"""
COUNT = "INSERT INTO finished_counts (queue, state, n) SELECT queue, state, count(*) FROM jobs GROUP BY queue, state"


async def fill(file: Path, count: int) -> None:
    """Make a store with finished jobs, and some that wait."""
    async with App(f"sqlite:///{file}", handlers=()):
        pass
    connection = apsw.Connection(str(file))
    connection.execute("PRAGMA synchronous = OFF")
    now = time.time_ns() // 1_000_000
    for first in range(1, count + 1, ROWS_PER_TRANSACTION):
        last = min(first + ROWS_PER_TRANSACTION - 1, count)
        with connection:
            connection.execute(FILL, (first, last, QUEUES, now))
    with connection:
        connection.execute(COUNT)
    connection.close()
    async with App(f"sqlite:///{file}", handlers=()) as app:
        for n in range(QUEUES):
            await app.jobs.enqueue_many(f"queue-{n}", [1, 2, 3])


async def measure_scrape(args: argparse.Namespace) -> None:
    """Scrape a store with many finished jobs, and an empty one for comparison."""
    for jobs in (0, args.jobs):
        with tempfile.TemporaryDirectory() as name:
            file = Path(name) / "grown.db"
            await fill(file, jobs)
            async with serve(f"sqlite:///{file}") as bench, httpx.AsyncClient(timeout=60) as client:
                times, before = [], read_cpu(bench.pid)
                for _ in range(SCRAPES):
                    start = time.perf_counter()
                    answer = await client.get(f"http://127.0.0.1:{bench.port}/api/_metrics")
                    times.append(time.perf_counter() - start)
                cost = (read_cpu(bench.pid) - before) / SCRAPES * 1000
                found = [line for line in answer.text.splitlines() if line.startswith("penstock_queue_jobs{")]
                counted = sum(float(line.rpartition(" ")[2]) for line in found)
                assert counted == jobs + 3 * QUEUES, f"{counted:.0f} jobs counted"
            shown = f"{describe(times)}, {cost:.1f} ms of CPU in the server"
            print(f"a scrape with {jobs:,} finished jobs in {QUEUES} queues: {shown} (goal: < 50 ms)")
