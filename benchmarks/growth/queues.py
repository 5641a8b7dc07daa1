"""Queues that one worker listens to, and enqueues one by one."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from typing import Any

from penstock import App, job

from .reading import Meter

JOBS, PICKUPS, SLOTS = 3_000, 100, 50
LIMIT = "10m"


def _make_jobs(count: int, ran: list[float]) -> list[Any]:
    def make(name: str) -> Any:
        @job(queue=name, name=name)
        async def work() -> None:
            ran.append(time.perf_counter())

        return work

    return [make(f"q{n}") for n in range(count)]


async def _finish(app: App, ran: list[float], count: int) -> None:
    while len(ran) < count:
        await asyncio.sleep(0.005)


async def _measure(meter: Meter, url: str, size: int, queues: int) -> None:
    """Complete jobs that were enqueued before the worker started."""
    ran: list[float] = []
    async with App(url, handlers=_make_jobs(size, ran)) as app:
        for start in range(0, JOBS, 500):
            await asyncio.gather(*(app.enqueue(f"q{n % queues}") for n in range(start, start + 500)))
        async with app.workers.background(concurrency=SLOTS):
            await _finish(app, ran, 1)
            ran.clear()
            with meter.each(JOBS - 200):
                await _finish(app, ran, JOBS - 200)


async def queues(meter: Meter, url: str, size: int) -> None:
    """No-op jobs of one queue, with a worker that listens to many."""
    await _measure(meter, url, size, 1)


async def queues_spread(meter: Meter, url: str, size: int) -> None:
    """No-op jobs of all queues."""
    await _measure(meter, url, size, size)


async def queues_pickup(meter: Meter, url: str, size: int) -> None:
    """From the call to the handler, one job at a time in a random queue; the median."""
    ran: list[float] = []
    rng = random.Random(1)
    took = []
    async with App(url, handlers=_make_jobs(size, ran)) as app, app.workers.background(concurrency=SLOTS):
        await asyncio.gather(*(app.enqueue(f"q{n}") for n in range(size)))  # every queue and its stream exist
        await _finish(app, ran, size)
        ran.clear()
        await asyncio.sleep(1)  # the worker has found all queues empty
        for n in range(PICKUPS):
            began = time.perf_counter()
            await app.enqueue(f"q{rng.randrange(size)}")
            await _finish_one(ran, n + 1)
            took.append((ran[-1] - began) * 1e6)
            await asyncio.sleep(rng.random() * 0.02)
    meter.found["time"] = statistics.median(took)


async def _finish_one(ran: list[float], count: int) -> None:
    while len(ran) < count:
        await asyncio.sleep(0.0005)


async def gather(meter: Meter, url: str, size: int) -> None:
    """Single enqueues by gather beside `enqueue_many`: the ratio of their costs. Size 1 is `enqueue_many`."""
    async with App(url, handlers=_make_jobs(1, [])) as app:
        await app.enqueue("q0")
        with meter.each(10_000):
            if size == 1:
                await app.jobs.enqueue_many("q0", [None] * 10_000)
            else:
                await asyncio.gather(*(app.enqueue("q0") for _ in range(10_000)))
