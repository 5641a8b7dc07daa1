"""Queue administration."""

from __future__ import annotations

from typing import Any

import apsw

from ...ports.store import JobRow, QueueRow
from ...ports.unit import JobState
from .events import SQL

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


def queues(cursor: apsw.Cursor) -> list[QueueRow]:
    rows: Any = cursor.execute(SQL.queue_names).fetchall()
    paused: dict[str, int] = dict(rows)
    counts: dict[str, dict[str, int]] = {name: {state.value: 0 for state in STATES} for name in paused}
    live = (SQL.count_waiting, SQL.count_delayed, SQL.count_active, SQL.count_suspended)
    for state, sql in zip(STATES, live, strict=False):
        for queue, n in cursor.execute(sql):
            counts[queue][state.value] = n
    for queue, n in cursor.execute(SQL.count_held):
        counts[queue][JobState.HELD.value] = n
    for queue, number, n in cursor.execute(SQL.count_finished):
        counts[queue][STATES[number].value] = n
    return [QueueRow(name, bool(flag), counts[name]) for name, flag in paused.items()]


def jobs(cursor: apsw.Cursor, queue: str, state: JobState, after: str | None, limit: int) -> list[JobRow]:
    place = cursor.execute(SQL.job_place, (after,)).fetchone() if after else None
    pk, priority, due, finished = place or (0, -(2**62), -1, None)
    match state:
        case JobState.WAITING:
            rows = cursor.execute(SQL.jobs_waiting, (queue, priority, pk, limit))
        case JobState.DELAYED:
            rows = cursor.execute(SQL.jobs_delayed, (queue, due, pk, limit))
        case JobState.ACTIVE:
            rows = cursor.execute(SQL.jobs_active, (queue, pk, limit))
        case JobState.SUSPENDED:
            rows = cursor.execute(SQL.jobs_suspended, (queue, pk, limit))
        case JobState.HELD:
            rows = cursor.execute(SQL.jobs_held, (queue, pk, limit))
        case _:
            # A job sent back to work since it was seen has no place here: what is left comes from the start.
            place = (-1, 0) if finished is None else (finished, pk)
            rows = cursor.execute(SQL.jobs_finished, (queue, STATES.index(state), *place, limit))
    return [_row(row) for row in rows]


def job(cursor: apsw.Cursor, id: str) -> JobRow | None:
    row = cursor.execute(SQL.job, (id,)).fetchone()
    return _row(row) if row else None


def set_paused(cursor: apsw.Cursor, queue: str, paused: bool) -> None:
    cursor.execute(SQL.set_paused, (queue, paused))


def change(cursor: apsw.Cursor, sql: str, id: str) -> str | None:
    """Promotes or retries a job; gives its queue if there was such a job."""
    rows = cursor.execute(sql, (id,)).fetchall()
    if rows and sql == SQL.retry:  # it had ended, and its key with it
        cursor.execute(SQL.free_ended_key, (id,))
    return str(rows[0][0]) if rows else None


def remove(cursor: apsw.Cursor, id: str) -> str | None:
    """Deletes a job that no worker holds; gives its queue if there was one."""
    rows = cursor.execute(SQL.remove, (id,)).fetchall()
    if not rows:
        return None
    queue, scope = map(str, rows[0])
    forget_memos(cursor, [scope])
    cursor.execute(SQL.free_key, (id,))
    return queue


def drain(cursor: apsw.Cursor, queue: str, delayed: bool) -> int:
    removed = cursor.execute(SQL.drain, (queue,)).fetchall()
    if delayed:
        removed += cursor.execute(SQL.drain_delayed, (queue,)).fetchall()
    forget_memos(cursor, [str(scope) for scope, _ in removed])
    for _, id in removed:
        cursor.execute(SQL.free_key, (id,))
    return len(removed)


def delete(cursor: apsw.Cursor, sql: str, bindings: tuple[object, ...]) -> int:
    """Runs a DELETE that gives the scope of each job it took, and lets their memos go with them."""
    scopes = [str(row[0]) for row in cursor.execute(sql, bindings).fetchall()]
    forget_memos(cursor, scopes)
    return len(scopes)


def forget_memos(cursor: apsw.Cursor, scopes: list[str]) -> None:
    """Memos go with the last job that could read them: a redriven one reads those of the job it continues."""
    for scope in scopes:
        cursor.execute(SQL.forget_job_memos, (scope,))


def _row(row: tuple[Any, ...]) -> JobRow:
    fields = list(row)
    fields[3] = STATES[row[3]]
    fields[12] = row[12] or row[0]  # a job reads its own memos unless it continues another
    return JobRow(*fields)
