"""Queue administration."""

from __future__ import annotations

from typing import Any

import apsw

from ...ports.store import JobRow, QueueRow
from ...ports.unit import JobState
from . import children
from .events import SQL

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


def queues(cursor: apsw.Cursor) -> list[QueueRow]:
    rows: Any = cursor.execute(SQL.queue_names).fetchall()
    paused: dict[str, int] = dict(rows)
    counts: dict[str, dict[str, int]] = {name: {state.value: 0 for state in STATES} for name in paused}
    live = (SQL.count_waiting, SQL.count_delayed, SQL.count_active, SQL.count_suspended)
    for state, sql in zip(STATES, live, strict=False):
        for queue, n in cursor.execute(sql):
            counts[queue][state.value] = n
    for state, sql in ((JobState.HELD, SQL.count_held), (JobState.WAITING_CHILDREN, SQL.count_waiting_children)):
        for queue, n in cursor.execute(sql):
            counts[queue][state.value] = n
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
        case JobState.WAITING_CHILDREN:
            rows = cursor.execute(SQL.jobs_waiting_children, (queue, pk, limit))
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


def promote(cursor: apsw.Cursor, id: str) -> set[str]:
    """Makes a delayed job due; gives the topics to signal, none if there was no such job."""
    return {f"queue:{row[0]}" for row in cursor.execute(SQL.promote, (id,)).fetchall()}


def retry(cursor: apsw.Cursor, id: str) -> set[str]:
    """Puts a failed or cancelled job back; gives the topics to signal, none if there was no such job."""
    rows = cursor.execute(SQL.retry, (id,)).fetchall()
    if rows:
        cursor.execute(SQL.free_ended_key, (id,))  # it had ended, and its key with it
        children.retried(cursor, id)
    return {f"queue:{row[0]}" for row in rows}


def remove(cursor: apsw.Cursor, id: str, now: int) -> set[str]:
    """Deletes a job that no worker holds; gives the topics to signal, none if there was no such job."""
    rows = cursor.execute(SQL.remove, (id,)).fetchall()
    touched = {f"queue:{row[0]}" for row in rows}
    _forget(cursor, [row[1:] for row in rows], now, touched)
    _free_keys(cursor, rows)
    return touched


def drain(cursor: apsw.Cursor, queue: str, delayed: bool, now: int, touched: set[str]) -> int:
    rows = cursor.execute(SQL.drain, (queue,)).fetchall()
    if delayed:
        rows += cursor.execute(SQL.drain_delayed, (queue,)).fetchall()
    _forget(cursor, rows, now, touched)
    _free_keys(cursor, rows)
    return len(rows)


def _free_keys(cursor: apsw.Cursor, rows: list[tuple[Any, ...]]) -> None:
    """Jobs that somebody removed stand for no other any more."""
    for *_, id in rows:
        cursor.execute(SQL.free_key, (id,))


def delete(cursor: apsw.Cursor, sql: str, bindings: tuple[object, ...], now: int, touched: set[str]) -> int:
    """Runs a DELETE that gives the scope and the id of each job it took; what belongs to them goes along."""
    rows = cursor.execute(sql, bindings).fetchall()
    _forget(cursor, rows, now, touched)
    return len(rows)


def _forget(cursor: apsw.Cursor, rows: list[tuple[Any, ...]], now: int, touched: set[str]) -> None:
    scopes = [str(scope) for scope, _ in rows]
    forget_memos(cursor, scopes)
    children.forget(cursor, scopes)
    touched |= children.gone(cursor, [str(id) for _, id in rows], now)


def forget_memos(cursor: apsw.Cursor, scopes: list[str]) -> None:
    """Memos go with the last job that could read them: a redriven one reads those of the job it continues."""
    for scope in scopes:
        cursor.execute(SQL.forget_job_memos, (scope,))


def _row(row: tuple[Any, ...]) -> JobRow:
    fields = list(row)
    fields[3] = STATES[row[3]]
    fields[12] = row[12] or row[0]  # a job reads its own memos unless it continues another
    return JobRow(*fields)
