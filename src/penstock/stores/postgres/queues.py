"""Queue administration."""

from __future__ import annotations

from typing import Any

from ...ports.store import JobRow, QueueRow
from ...ports.unit import JobState
from . import children
from .connection import Connection
from .statements import Statements

STATES = (
    JobState.WAITING,
    JobState.DELAYED,
    JobState.ACTIVE,
    JobState.SUSPENDED,
    JobState.COMPLETED,
    JobState.FAILED,
    JobState.CANCELLED,
    JobState.WAITING_CHILDREN,  # -2, the last but one
    JobState.HELD,  # -1, the last
)


async def queues(connection: Connection, sql: Statements) -> list[QueueRow]:
    found: dict[str, QueueRow] = {}
    for name, paused, state, many in await connection.fetch(sql.queues):
        if name not in found:
            found[name] = QueueRow(name, paused, {state.value: 0 for state in STATES})
        if state is not None:
            found[name].counts[STATES[state].value] = many
    return list(found.values())


async def jobs(
    connection: Connection, sql: Statements, queue: str, state: JobState, after: str | None, limit: int
) -> list[JobRow]:
    place = await connection.fetchrow(sql.job_place, after) if after else None
    pk, priority, due, finished = place or (0, -(2**62), -1, None)
    number = -1 if state is JobState.HELD else STATES.index(state)
    match state:
        case JobState.WAITING:
            rows = await connection.fetch(sql.jobs_waiting, queue, priority, pk, limit)
        case JobState.DELAYED:
            rows = await connection.fetch(sql.jobs_delayed, queue, due, pk, limit)
        case JobState.ACTIVE:
            rows = await connection.fetch(sql.jobs_active, queue, pk, limit)
        case JobState.WAITING_CHILDREN:
            rows = await connection.fetch(sql.jobs_waiting_children, queue, pk, limit)
        case JobState.SUSPENDED | JobState.HELD:
            rows = await connection.fetch(sql.jobs_asleep, queue, number, pk, limit)
        case _:
            # A job sent back to work since it was seen has no place here: what is left comes from the start.
            at = (-1, 0) if finished is None else (finished, pk)
            rows = await connection.fetch(sql.jobs_finished, queue, number, *at, limit)
    return [_row(row) for row in rows]


async def job(connection: Connection, sql: Statements, id: str) -> JobRow | None:
    row = await connection.fetchrow(sql.job, id)
    return _row(row) if row else None


async def retry(connection: Connection, sql: Statements, id: str) -> str | None:
    """Puts a failed or cancelled job back; gives its queue if there was one."""
    async with connection.transaction():
        queue = await connection.fetchval(sql.retry, id)
        if queue is not None:
            await children.retried(connection, sql, id)
    return str(queue) if queue is not None else None


async def remove(connection: Connection, sql: Statements, id: str, now: int | None) -> set[str]:
    """Deletes a job that no worker holds; gives the topics to signal, none if there was no such job."""
    async with connection.transaction():
        row = await connection.fetchrow(sql.remove, id)
        if row is None:
            return set()
        return {f"queue:{row[0]}"} | await _forget(connection, sql, [row[1]], [row[2]], now)


async def drain(
    connection: Connection, sql: Statements, queue: str, delayed: bool, now: int | None
) -> tuple[int, set[str]]:
    async with connection.transaction():
        return await delete(connection, sql, now, sql.drain, queue, delayed)


async def delete(
    connection: Connection, sql: Statements, now: int | None, statement: str, *values: object
) -> tuple[int, set[str]]:
    """Runs a DELETE that gives the scope and the id of each job it took; what belongs to them goes along. Gives how
    many, and the topics to signal."""
    rows = await connection.fetch(statement, *values)
    if not rows:
        return 0, set()
    return len(rows), await _forget(connection, sql, [row[0] for row in rows], [row[1] for row in rows], now)


async def _forget(
    connection: Connection, sql: Statements, scopes: list[str], ids: list[str], now: int | None
) -> set[str]:
    await connection.execute(sql.forget_memos, scopes)
    await children.forget(connection, sql, scopes)
    return await children.dropped(connection, sql, now, ids)


def _row(row: Any) -> JobRow:
    fields = list(row)
    fields[3] = STATES[row[3]]
    fields[12] = row[12] or row[0]  # a job reads its own memos unless it continues another
    return JobRow(*fields)
