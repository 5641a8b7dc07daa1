"""The cost of child runs: milliseconds per child of one `ctx.call_many`, for 10 to 10,000 children, on each store.

python -m benchmarks.child_runs sqlite:///FILE | redis://… | postgresql://… [count …]
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import tracemalloc

from penstock import App, Context, flow

COUNTS = (10, 100, 1_000, 10_000)
WAITING = 10_000


@flow("child")
async def child(n: int) -> int:
    return n


@flow("parent")
async def parent(count: int, ctx: Context) -> int:
    return sum(await ctx.call_many(child, range(count)))


@flow("sleeper")
async def sleeper(ctx: Context) -> None:
    await ctx.wait.time("30d")


@flow("patient")
async def patient(count: int, ctx: Context) -> None:
    await ctx.call_many(sleeper, [None] * count)


async def measure(app: App, count: int) -> float:
    """Return the milliseconds per child, from the start of the parent to its result."""
    began = time.perf_counter()
    run = await app.start("parent", count)
    assert await app.result(run, timeout="30m") == count * (count - 1) // 2
    return (time.perf_counter() - began) * 1000 / count


async def measure_memory(app: App, count: int) -> float:
    """Return the bytes that the worker holds for each waiting child."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    run = await app.start("patient", count)
    while (await app.queues.counts("default"))["suspended"] < count:
        await asyncio.sleep(0.5)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await app.runs.cancel(run)
    return (after - before) / count


async def main(url: str, counts: tuple[int, ...]) -> None:
    async with App(url, handlers=[child, parent, sleeper, patient]) as app, app.workers.background(concurrency=50):
        await measure(app, 100)  # the first one warms up connections and statements
        for count in counts:
            print(f"{count:>6,} children: {await measure(app, count):.2f} ms each", flush=True)
        held = await measure_memory(app, WAITING)
        print(f"{WAITING:,} waiting children: {held:.0f} bytes each in the worker", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], tuple(map(int, sys.argv[2:])) or COUNTS))
