"""Read and write schedules. The commit that fires a schedule moves it on."""

from __future__ import annotations

from ...ports.store import DueSchedules, ScheduleRow
from .connection import Connection
from .statements import Statements


async def put(connection: Connection, sql: Statements, row: ScheduleRow, was: ScheduleRow | None) -> bool:
    """Write a schedule if it is still `was`. Return whether it was written."""
    values = (row.id, row.spec, row.target, row.next, row.last, row.paused, row.fired)
    if was is None:
        return await connection.fetchval(sql.add_schedule, *values) is not None
    before = (was.spec, was.target, was.next, was.last, was.paused, was.fired)
    return await connection.fetchval(sql.change_schedule, *values, *before) is not None


async def remove(connection: Connection, sql: Statements, id: str, was: ScheduleRow | None) -> bool:
    if was is None:
        return await connection.fetchval(sql.remove_schedule, id) is not None
    return await connection.fetchval(sql.remove_unchanged_schedule, id, was.spec, was.target) is not None


async def schedule(connection: Connection, sql: Statements, id: str) -> ScheduleRow | None:
    row = await connection.fetchrow(sql.schedule, id)
    return ScheduleRow(*row) if row is not None else None


async def schedules(connection: Connection, sql: Statements) -> list[ScheduleRow]:
    return [ScheduleRow(*row) for row in await connection.fetch(sql.schedules)]


async def due_schedules(
    connection: Connection, sql: Statements, now: int | None, after: ScheduleRow | None, limit: int
) -> DueSchedules:
    at = now if now is not None else await connection.fetchval(sql.now_ms)
    position = (after.next, after.id) if after is not None else (0, "")
    return DueSchedules(
        at, [ScheduleRow(*row) for row in await connection.fetch(sql.due_schedules, at, *position, limit)]
    )
