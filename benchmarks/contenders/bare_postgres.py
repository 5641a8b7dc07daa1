"""Baseline without an engine: one connection takes batches with SKIP LOCKED and finishes each with one UPDATE."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version
from pathlib import Path

import asyncpg
from entry import Case, Metrics, main


def about() -> dict[str, str]:
    return {
        "name": "bare Postgres",
        "version": version("asyncpg"),
        "settings": "asyncpg, no engine, no events, no lease: take with SKIP LOCKED, finish by one UPDATE, as many at "
        "a time as the concurrency",
    }


def statements() -> dict[str, str]:
    text = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")
    parts = text.split("-- name: ")[1:]
    return {name: body.strip() for name, _, body in (part.partition("\n") for part in parts)}


async def jobs(case: Case) -> Metrics:
    sql = statements()
    connection = await asyncpg.connect(case.url)
    await connection.execute(sql["schema"])
    since = time.monotonic()
    await connection.execute(sql["add"], case.n)
    enqueued = time.monotonic() - since
    take, finish = await connection.prepare(sql["take"]), await connection.prepare(sql["finish"])
    cpu, since, done = time.process_time(), time.monotonic(), 0
    while rows := await take.fetch(case.level):
        await finish.fetch([row["pk"] for row in rows])
        done += len(rows)
    span, cpu = time.monotonic() - since, time.process_time() - cpu
    await connection.close()
    return {"per_s": done / span, "cpu_us": cpu / done * 1e6, "enqueue_per_s": case.n / enqueued}


main(about, {"jobs": lambda case: asyncio.run(jobs(case))})
