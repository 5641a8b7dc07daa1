"""CPU time of the server in microseconds. Unlike wall-clock time, it does not depend on other processes."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg


def server_us(url: str) -> float:
    """Return the CPU time so far, of Redis or of all processes of Postgres."""
    if url.startswith("redis"):
        from redis_info import cpu_us

        return cpu_us(url)
    return processes_us(_postmaster(url))


def processes_us(postmaster: int) -> float:
    """Return the CPU time of a Postgres server, including its processes that have ended."""
    spent = sum(_ticks(postmaster))
    for child in Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split():
        try:
            spent += sum(_ticks(int(child))[:2])
        except FileNotFoundError:
            continue  # the process has just ended
    return spent / os.sysconf("SC_CLK_TCK") * 1e6


def _ticks(pid: int) -> list[int]:
    """Return user and system time, then those of the children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(field) for field in fields[11:15]]


def _postmaster(url: str) -> int:
    """Return the process id. Runs in a thread, because an event loop may be running here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(_parent_of_backend(url))).result()


async def _parent_of_backend(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        backend = await connection.fetchval("SELECT pg_backend_pid()")
        return int(Path(f"/proc/{backend}/stat").read_text().rpartition(")")[2].split()[1])
    finally:
        await connection.close()
