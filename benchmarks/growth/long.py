"""What only shows after a while: a transaction that is held open beside work, and retention over many runs.

python -m benchmarks.growth.long held_transaction [--minutes N]
python -m benchmarks.growth.long soak [--runs N] [--store sqlite|redis|postgres]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import asyncpg

from penstock import App, Context, flow, job, step

from ..servers import open_target
from .__main__ import RESULTS, STORES

BURST, JOBS_PER_S, SLOTS = 3_000, 1_000, 50
RUNS_AT_ONCE, READINGS = 500, 10


@job(queue="small", name="small")
async def small() -> int:
    return 1


async def _burst(app: App) -> float:
    """Return how many jobs per second are completed, with all of them enqueued before."""
    await app.queues.pause("small")
    before = (await app.queues.counts("small"))["completed"]
    await app.jobs.enqueue_many("small", [None] * BURST, name="small")
    began = time.perf_counter()
    await app.queues.resume("small")
    while (await app.queues.counts("small"))["completed"] < before + BURST:
        await asyncio.sleep(0.01)
    return BURST / (time.perf_counter() - began)


async def _load(app: App, until: float) -> None:
    """Enqueue a thousand jobs a second."""
    while (left := until - time.perf_counter()) > 0:
        await app.jobs.enqueue_many("small", [None] * (JOBS_PER_S // 10), name="small")
        await asyncio.sleep(min(0.1, left))


async def held_transaction(url: str, minutes: float) -> None:
    """Print the rate before a transaction is opened, and in each minute while it is held."""
    async with App(url, handlers=[small], keep_jobs=10_000) as app, app.workers.background(concurrency=SLOTS):
        await _burst(app)
        first = await _burst(app)
        print(f"before: {first:,.0f} jobs/s", flush=True)
        connection = await asyncpg.connect(url)
        transaction = connection.transaction(isolation="repeatable_read")
        await transaction.start()
        await connection.fetchval("SELECT txid_current()")  # it holds the xmin horizon from here on
        for minute in range(1, int(minutes) + 1):
            await _load(app, time.perf_counter() + 60)
            rate = await _burst(app)
            print(f"minute {minute}: {rate:,.0f} jobs/s, {rate / first:.2f} of the rate before", flush=True)
        await transaction.rollback()
        await connection.close()


@flow("soak", emits=["one"])
async def soak_flow(n: int, ctx: Context) -> None:
    await ctx.state.set("n", n)
    ctx.emit("one", n)


@step(on="one", flow="soak")
async def last(n: int) -> int:
    return n


async def soak(url: str, runs: int) -> None:
    """Print memory and stored size while runs come and go. Retention keeps the newest thousand."""
    kept: dict[str, Any] = {"keep_runs": 1_000, "keep_jobs": 1_000, "keep_events": 1_000}
    async with App(url, handlers=[soak_flow, last], **kept) as app, app.workers.background(concurrency=SLOTS):
        done = 0
        for reading in range(1, READINGS + 1):
            while done < runs * reading // READINGS:
                started = [await app.start("soak", n) for n in range(RUNS_AT_ONCE)]
                await asyncio.gather(*(app.runs.wait(run, timeout="10m") for run in started))
                done += RUNS_AT_ONCE
                if done % (4 * RUNS_AT_ONCE) == 0:
                    await app.workers._sweep_all()  # as often as a worker does in a few minutes
            print(f"{done:>9,} runs: {_resident_mb():6.1f} MB of memory, {await _describe(app, url)}", flush=True)


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


async def _describe(app: App, url: str) -> str:
    if url.startswith("redis"):
        info = (await app.store.client.call("INFO", "memory")).decode()  # type: ignore[attr-defined]
        keys = await app.store.client.call("DBSIZE")  # type: ignore[attr-defined]
        used = int(info.partition("used_memory:")[2].split()[0])
        return f"{used / 2**20:.1f} MB in the server, {keys:,} keys"
    if url.startswith("sqlite"):
        file = Path(url.removeprefix("sqlite:///"))
        sizes = [one.stat().st_size / 2**20 for one in (file, file.with_name(file.name + "-wal")) if one.exists()]
        return " + ".join(f"{size:.1f}" for size in sizes) + " MB in the file and its log"
    connection = await asyncpg.connect(url)
    try:
        size = await connection.fetchval("SELECT pg_database_size(current_database())")
        return f"{size / 2**20:.1f} MB in the database"
    finally:
        await connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth.long", description=__doc__)
    parser.add_argument("scenario", choices=("held_transaction", "soak"))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--store", choices=STORES, default="sqlite")
    args = parser.parse_args()
    store = "postgres" if args.scenario == "held_transaction" else args.store
    RESULTS.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="long-", dir=RESULTS)
    try:
        with open_target(store, RESULTS) as target:
            url = target.reset() or f"sqlite:///{folder}/long.db"
            asyncio.run(soak(url, args.runs) if args.scenario == "soak" else held_transaction(url, args.minutes))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
