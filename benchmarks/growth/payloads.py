"""Large inputs: what a job costs to enqueue, and what is stored of it."""

from __future__ import annotations

import asyncio
import random
import string
from pathlib import Path

import asyncpg

from penstock import App, job

from .reading import Meter

JOBS = 500


@job(queue="large", name="large")
async def large(_: str) -> None: ...


async def _stored_bytes(app: App, url: str) -> int:
    if url.startswith("redis"):
        info = (await app.store.client.call("INFO", "memory")).decode()  # type: ignore[attr-defined]
        return int(info.partition("used_memory:")[2].split()[0])
    if url.startswith("sqlite"):
        file = Path(url.removeprefix("sqlite:///"))
        return sum(one.stat().st_size for one in (file, file.with_name(file.name + "-wal")) if one.exists())
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT pg_database_size(current_database())"))
    finally:
        await connection.close()


async def payload(meter: Meter, url: str, size: int) -> None:
    """Jobs with an input of so many bytes: enqueued, completed, and what is stored for each byte."""
    rng = random.Random(1)
    texts = ["".join(rng.choices(string.ascii_letters, k=size)) for _ in range(JOBS)]
    async with App(url, handlers=[large]) as app:
        await app.enqueue("large", "first")
        before = await _stored_bytes(app, url)
        with meter.each(JOBS):
            await app.jobs.enqueue_many("large", texts)
        enqueued = dict(meter.found)
        async with app.workers.background(concurrency=50):
            with meter.each(JOBS):
                await _wait(app)
        meter.found = {**{f"enqueue {key}": value for key, value in enqueued.items()}, **meter.found}
    async with App(url, handlers=[large]) as app:  # SQLite writes its file when it is closed
        meter.found["stored bytes"] = await _stored_bytes(app, url) - before
        meter.found["stored bytes per byte"] = meter.found["stored bytes"] / (JOBS * size)


async def _wait(app: App) -> None:
    while (await app.queues.counts("large"))["completed"] <= JOBS:
        await asyncio.sleep(0.02)
