"""Queue administration: counts, lists, retry, removal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ...ports.store import JobRow, QueueRow
from ...ports.unit import JobState
from . import children
from .connection import Connection
from .statements import HELD, Statements

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


async def queues(connection: Connection, sql: Statements, now: int | None) -> list[QueueRow]:
    found: dict[str, QueueRow] = {}
    oldest = dict(await connection.fetch(sql.oldest_waiting, now))
    for name, paused, state, count in await connection.fetch(sql.queues):
        if name not in found:
            found[name] = QueueRow(name, paused, {state.value: 0 for state in STATES}, oldest.get(name))
        if state is not None:
            found[name].counts[STATES[state].value] = count
    # Waits with a timeout are stored as delayed until then. The counts may be of different moments.
    for name, timed in await connection.fetch(sql.count_timed):
        counts = found[name].counts if name in found else {}
        moved = min(timed, counts.get(JobState.DELAYED.value, 0))
        if moved:
            counts[JobState.DELAYED.value] -= moved
            counts[JobState.SUSPENDED.value] += moved
    return list(found.values())


async def jobs(
    connection: Connection, sql: Statements, queue: str, state: JobState, after: str | None, limit: int
) -> list[JobRow]:
    position = await connection.fetchrow(sql.job_position, after) if after else None
    pk, priority, due, finished = position or (0, -(2**62), -1, None)
    number = HELD if state is JobState.HELD else STATES.index(state)
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
            rows = await connection.fetch(sql.jobs_held_or_suspended, queue, number, pk, limit)
        case _:
            # A job that was retried since the last page is no longer in this list: start from the beginning.
            at = (-1, 0) if finished is None else (finished, pk)
            rows = await connection.fetch(sql.jobs_finished, queue, number, *at, limit)
    return [_job_row(row) for row in rows]


async def job(connection: Connection, sql: Statements, id: str) -> JobRow | None:
    row = await connection.fetchrow(sql.job, id)
    return _job_row(row) if row else None


async def retry(connection: Connection, sql: Statements, id: str, now: int | None) -> str | None:
    """Put a failed or cancelled job back into its queue. Return the queue, or None if there is no such job."""
    async with connection.transaction(), _locked_order(connection, sql, id, now):
        queue = await connection.fetchval(sql.retry, id)
        if queue is not None:
            await children.wait_again(connection, sql, id)
    return str(queue) if queue is not None else None


async def remove(connection: Connection, sql: Statements, id: str, now: int | None) -> set[str]:
    """Delete a job that no worker has claimed. Return the topics to signal, none if there is no such job."""
    async with connection.transaction(), _locked_order(connection, sql, id, now):
        row = await connection.fetchrow(sql.remove, id)
        if row is None:
            return set()
        return {f"queue:{row[0]}"} | await _forget(connection, sql, [row[1]], [row[2]], now)


async def drain(
    connection: Connection, sql: Statements, queue: str, delayed: bool, now: int | None
) -> tuple[int, set[str]]:
    """Delete the waiting jobs of a queue and those held behind them. Return how many, and the topics to signal."""
    async with connection.transaction():
        await connection.execute(sql.lock_order_queue, queue)
        return await delete(connection, sql, now, sql.drain, queue, delayed)


@asynccontextmanager
async def _locked_order(connection: Connection, sql: Statements, id: str, now: int | None) -> AsyncIterator[None]:
    """Lock the order key of a job, if it has one, and release the first job of the key after the change."""
    order = await connection.fetchrow(sql.order_of_job, id)
    if order is not None:
        await connection.execute(sql.lock_order_key, *order)
    yield
    if order is not None:
        await connection.execute(sql.release_order_head, now, *order)


async def delete(
    connection: Connection, sql: Statements, now: int | None, statement: str, *values: object
) -> tuple[int, set[str]]:
    """Run a DELETE that returns the scope and id of each job, and delete what belongs to those jobs.

    Return the number of jobs, and the topics to signal.
    """
    rows = await connection.fetch(statement, *values)
    if not rows:
        return 0, set()
    return len(rows), await _forget(connection, sql, [row[0] for row in rows], [row[1] for row in rows], now)


async def _forget(
    connection: Connection, sql: Statements, scopes: list[str], ids: list[str], now: int | None
) -> set[str]:
    await connection.execute(sql.forget_scopes, scopes)
    await connection.execute(sql.free_dedupe_keys, ids)
    return await children.drop(connection, sql, now, ids)


def _job_row(row: Any) -> JobRow:
    fields = list(row)
    fields[3] = STATES[row[3]]
    fields[12] = row[12] or row[0]  # a job reads its own memos unless it continues another job
    return JobRow(*fields)
