"""Administer queues: list, pause, promote, retry, remove and drain."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import apsw

from ...ports.store import JobRow, QueueRow
from ...ports.unit import JobState
from . import children, dedupe, order_keys
from .retention import delete_belongings
from .statements import ADMIN as SQL

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


def queues(cursor: apsw.Cursor, now: int) -> list[QueueRow]:
    rows: Any = cursor.execute(SQL.queue_names).fetchall()
    paused: dict[str, int] = dict(rows)
    # A queue that only its jobs name is listed too.
    counts: dict[str, dict[str, int]] = defaultdict(lambda: {state.value: 0 for state in STATES})
    live = (SQL.count_waiting, SQL.count_delayed, SQL.count_active, SQL.count_suspended)
    for state, sql in zip(STATES, live, strict=False):
        for queue, n in cursor.execute(sql):
            counts[queue][state.value] = n
    for queue, n in cursor.execute(SQL.count_timed):  # waits with a timeout are stored as delayed until then
        counts[queue][JobState.DELAYED.value] -= n
        counts[queue][JobState.SUSPENDED.value] += n
    for state, sql in ((JobState.HELD, SQL.count_held), (JobState.WAITING_CHILDREN, SQL.count_waiting_children)):
        for queue, n in cursor.execute(sql):
            counts[queue][state.value] = n
    for queue, number, n in cursor.execute(SQL.count_finished):
        counts[queue][STATES[number].value] = n
    since: Any = cursor.execute(SQL.oldest_waiting, (now,)).fetchall()
    oldest: dict[str, int] = dict(since)
    names = sorted({*paused, *counts})
    return [QueueRow(name, bool(paused.get(name)), counts[name], oldest.get(name)) for name in names]


def jobs(cursor: apsw.Cursor, queue: str, state: JobState, after: str | None, limit: int) -> list[JobRow]:
    position = cursor.execute(SQL.job_position, (after,)).fetchone() if after else None
    pk, priority, due, finished = position or (0, -(2**62), -1, None)
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
            # A job that was retried since the last page has no position here: start from the first job.
            position = (-1, 0) if finished is None else (finished, pk)
            rows = cursor.execute(SQL.jobs_finished, (queue, STATES.index(state), *position, limit))
    return [_row(row) for row in rows]


def namespace(cursor: apsw.Cursor) -> str | None:
    row = cursor.execute(SQL.namespace).fetchone()
    return str(row[0]) if row else None


def claim_namespace(cursor: apsw.Cursor, wanted: str) -> str | None:
    """Set the namespace of a new store. Return the one it belongs to."""
    cursor.execute(SQL.set_namespace, (wanted,))
    return namespace(cursor)


def job(cursor: apsw.Cursor, id: str) -> JobRow | None:
    row = cursor.execute(SQL.job, (id,)).fetchone()
    return _row(row) if row else None


def set_paused(cursor: apsw.Cursor, queue: str, paused: bool) -> None:
    cursor.execute(SQL.set_paused, (queue, paused))


def reset_rates(cursor: apsw.Cursor, queue: str) -> None:
    cursor.execute(SQL.reset_rates, (queue,))


def promote(cursor: apsw.Cursor, id: str) -> set[str]:
    """Make a delayed job due. Return the topics to signal, none if there is no such job."""
    return {f"queue:{row[0]}" for row in cursor.execute(SQL.promote, (id,)).fetchall()}


def retry(cursor: apsw.Cursor, id: str, now: int) -> set[str]:
    """Retry a failed or cancelled job. Return the topics to signal, none if there is no such job."""
    cursor.execute(SQL.uncount_retried, (id,))
    rows = cursor.execute(SQL.retry, (id,)).fetchall()
    if rows:
        dedupe.release_keys_without_ttl(cursor, [id])
        children.reset(cursor, id)
    touched = {f"queue:{row[0]}" for row in rows}
    for queue, order_key in rows:
        if order_key is not None:
            order_keys.move_to_end(cursor, id, str(queue), str(order_key), now, touched)
    return touched


def remove(cursor: apsw.Cursor, id: str, now: int) -> set[str]:
    """Delete a job that no worker holds. Return the topics to signal, none if there is no such job."""
    rows = cursor.execute(SQL.remove, (id,)).fetchall()
    touched = {f"queue:{row[0]}" for row in rows}
    delete_belongings(cursor, [row[2:] for row in rows], now, touched)
    dedupe.release_keys(cursor, [str(row[-1]) for row in rows])
    for queue, order_key, *_ in rows:
        if order_key is not None:
            order_keys.release_head(cursor, str(queue), str(order_key), now, touched)
    return touched


def drain(cursor: apsw.Cursor, queue: str, delayed: bool, now: int, touched: set[str]) -> int:
    """Delete the waiting jobs of a queue and those held behind them, and with `delayed` the delayed ones. Return how
    many."""
    rows = cursor.execute(SQL.drain, (queue,)).fetchall() + cursor.execute(SQL.drain_ordered, (queue,)).fetchall()
    if delayed:
        rows += cursor.execute(SQL.drain_delayed, (queue,)).fetchall()
    delete_belongings(cursor, rows, now, touched)
    dedupe.release_keys(cursor, [str(row[-1]) for row in rows])
    return len(rows)


def _row(row: tuple[Any, ...]) -> JobRow:
    fields = list(row)
    fields[3] = STATES[row[3]]
    fields[12] = row[12] or row[0]  # a job reads its own memos unless it continues another job
    return JobRow(*fields)
