"""Fill a store with finished jobs as fast as its server can: rows and keys as a worker leaves them, without events."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import asyncpg
import redis.asyncio

from penstock import App

QUEUES = 50
CHUNK = 500_000
REDIS_CHUNK = 20_000  # one script; the server answers nobody else meanwhile
SCRIPTS = Path(__file__).parent / "fill"


async def fill(url: str, count: int) -> None:
    """Make an empty store into one with finished jobs, and some that wait."""
    async with App(url, handlers=()) as app:
        for n in range(QUEUES):
            await app.jobs.enqueue_many(f"queue-{n}", [1, 2, 3])
    if count:
        await FILLS[url.partition(":")[0]](url, count)


def _chunks(count: int, size: int) -> list[tuple[int, int]]:
    return [(first, min(first + size - 1, count)) for first in range(1, count + 1, size)]


async def _fill_sqlite(url: str, count: int) -> None:
    connection = apsw.Connection(str(Path(url.removeprefix("sqlite:///"))))
    connection.execute("PRAGMA synchronous = OFF")
    for first, last in _chunks(count, CHUNK):
        with connection:
            connection.execute(_read("sqlite_jobs.sql"), (first, last, QUEUES, _now_ms()))
    with connection:
        connection.execute(_read("sqlite_counts.sql"))
    connection.close()


async def _fill_postgres(url: str, count: int) -> None:
    connection = await asyncpg.connect(url)
    for first, last in _chunks(count, CHUNK):
        await connection.execute(_read("postgres_jobs.sql"), first, last, QUEUES, _now_ms())
    await connection.execute(_read("postgres_counts.sql"))
    await connection.execute("VACUUM (ANALYZE)")  # as autovacuum does while jobs arrive
    await connection.execute("CHECKPOINT")
    await connection.close()


async def _fill_redis(url: str, count: int) -> None:
    connection = redis.asyncio.Redis.from_url(url, socket_timeout=None)
    for first, last in _chunks(count, REDIS_CHUNK):
        await connection.eval(_read("redis_jobs.lua"), 0, first, last, QUEUES, _now_ms())  # type: ignore[misc]
    used = (await connection.info("memory"))["used_memory"]
    print(f"Redis holds {used / 2**30:.1f} GB")
    await connection.aclose()


def _read(name: str) -> str:
    return (SCRIPTS / name).read_text(encoding="utf-8")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


FILLS: dict[str, Callable[[str, int], Awaitable[None]]] = {
    "sqlite": _fill_sqlite,
    "postgresql": _fill_postgres,
    "redis": _fill_redis,
}
