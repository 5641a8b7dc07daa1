"""Queue administration."""

from __future__ import annotations

from typing import Any

from ...ports.store import JobRow, QueueRow
from ...ports.unit import JobState
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


async def remove(connection: Connection, sql: Statements, id: str) -> str | None:
    """Deletes a job that no worker holds; gives its queue if there was one."""
    async with connection.transaction():
        row = await connection.fetchrow(sql.remove, id)
        if row is None:
            return None
        await connection.execute(sql.forget_memos, [row[1]])
    return str(row[0])


async def drain(connection: Connection, sql: Statements, queue: str, delayed: bool) -> int:
    async with connection.transaction():
        return await delete(connection, sql, sql.drain, queue, delayed)


async def delete(connection: Connection, sql: Statements, statement: str, *values: object) -> int:
    """Runs a DELETE that gives the scope of each job it took, and lets their memos go with them."""
    scopes = [row[0] for row in await connection.fetch(statement, *values)]
    if scopes:
        await connection.execute(sql.forget_memos, scopes)
    return len(scopes)


def _row(row: Any) -> JobRow:
    fields = list(row)
    fields[3] = STATES[row[3]]
    fields[12] = row[12] or row[0]  # a job reads its own memos unless it continues another
    return JobRow(*fields)
