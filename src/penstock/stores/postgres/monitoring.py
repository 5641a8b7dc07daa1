"""What operators read: the workers that are alive, counts by minute, error groups."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...ports.monitoring import ErrorGroupRow, KeyRow, MinuteCounts, WorkerRow
from .connection import Connection
from .statements import Statements


async def report_worker(
    connection: Connection, sql: Statements, id: str, facts: bytes, ttl_ms: int, now: int | None
) -> None:
    await connection.execute(sql.report_worker, id, facts, ttl_ms, now)


async def remove_worker(connection: Connection, sql: Statements, id: str) -> None:
    await connection.execute(sql.remove_worker, id)


async def workers(connection: Connection, sql: Statements, now: int | None) -> list[WorkerRow]:
    return [WorkerRow(*row) for row in await connection.fetch(sql.live_workers, now)]


async def add_counts(connection: Connection, sql: Statements, counts: Sequence[MinuteCounts]) -> None:
    rows = sorted(msgspec.structs.astuple(one) for one in counts)  # in one order: two processes lock the same rows
    await connection.execute(sql.add_counts, *map(list, zip(*rows, strict=True)))


async def rates(connection: Connection, sql: Statements, queue: str | None, since: int) -> list[MinuteCounts]:
    return [MinuteCounts(*row) for row in await connection.fetch(sql.rates, queue, since)]


async def open_keys(connection: Connection, sql: Statements, queue: str, look: int) -> list[KeyRow]:
    return [KeyRow(*row) for row in await connection.fetch(sql.open_keys, queue, look)]


async def error_groups(connection: Connection, sql: Statements, queue: str) -> list[ErrorGroupRow]:
    return [ErrorGroupRow(*row) for row in await connection.fetch(sql.error_groups, queue)]


async def jobs_of_error_group(
    connection: Connection, sql: Statements, queue: str, group: str, after: str | None, limit: int
) -> list[str]:
    return [row[0] for row in await connection.fetch(sql.jobs_of_error_group, queue, group, after, limit)]
