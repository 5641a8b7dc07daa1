"""Queue administration."""

from __future__ import annotations

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
)


def queues(cursor: apsw.Cursor) -> list[QueueRow]:
    paused = dict(cursor.execute(SQL.queue_names).fetchall())
    counts: dict[str, dict[str, int]] = {name: {state.value: 0 for state in STATES} for name in paused}
    live = (SQL.count_waiting, SQL.count_delayed, SQL.count_active, SQL.count_suspended)
    for state, sql in zip(STATES, live, strict=False):
        for queue, n in cursor.execute(sql):
            counts[queue][state.value] = n
    for queue, number, n in cursor.execute(SQL.count_finished):
        counts[queue][STATES[number].value] = n
    return [QueueRow(name, bool(flag), counts[name]) for name, flag in paused.items()]


def jobs(cursor: apsw.Cursor, queue: str, state: JobState, after: str | None, limit: int) -> list[JobRow]:
    place = cursor.execute(SQL.job_place, (after,)).fetchone() if after else None
    pk, priority, due, finished = place or (0, -(2**62), -1, -1)
    if finished is None:
        finished, pk_finished = -1, 0  # it was sent back to work since: what is left is at the beginning again
    else:
        pk_finished = pk
    match state:
        case JobState.WAITING:
            rows = cursor.execute(SQL.jobs_waiting, (queue, priority, pk, limit))
        case JobState.DELAYED:
            rows = cursor.execute(SQL.jobs_delayed, (queue, due, pk, limit))
        case JobState.ACTIVE:
            rows = cursor.execute(SQL.jobs_active, (queue, pk, limit))
        case JobState.SUSPENDED:
            rows = cursor.execute(SQL.jobs_suspended, (queue, pk, limit))
        case _:
            rows = cursor.execute(SQL.jobs_finished, (queue, STATES.index(state), finished, pk_finished, limit))
    return [_row(row) for row in rows]


def job(cursor: apsw.Cursor, id: str) -> JobRow | None:
    row = cursor.execute(SQL.job, (id,)).fetchone()
    return _row(row) if row else None


def set_paused(cursor: apsw.Cursor, queue: str, paused: bool) -> None:
    cursor.execute(SQL.set_paused, (queue, paused))


def change(cursor: apsw.Cursor, sql: str, id: str) -> str | None:
    """Promotes, retries or removes a job; gives its queue if there was such a job."""
    rows = cursor.execute(sql, (id,)).fetchall()
    return rows[0][0] if rows else None


def drain(cursor: apsw.Cursor, queue: str, delayed: bool) -> int:
    cursor.execute(SQL.drain, (queue,))
    removed = cursor.connection.changes()
    if delayed:
        cursor.execute(SQL.drain_delayed, (queue,))
        removed += cursor.connection.changes()
    return removed


def _row(row: tuple[object, ...]) -> JobRow:
    id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, *rest = row
    return JobRow(
        id, queue, name, STATES[state], payload, opts, priority, due, attempt, failures, crashes, run, scope or id, *rest,  # type: ignore[index,arg-type,call-overload]
    )  # fmt: skip
