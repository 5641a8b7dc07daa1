"""What operators read: the workers that are alive, counts by minute, error groups."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from ...ports.monitoring import ErrorGroupRow, KeyRow, MinuteCounts, WorkerRow
from .statements import ADMIN as SQL


def report_worker(cursor: apsw.Cursor, id: str, facts: bytes, ttl_ms: int, now: int) -> None:
    cursor.execute(SQL.report_worker, (id, facts, now, now + ttl_ms))


def remove_worker(cursor: apsw.Cursor, id: str) -> None:
    cursor.execute(SQL.remove_worker, (id,))


def workers(cursor: apsw.Cursor, now: int) -> list[WorkerRow]:
    return [WorkerRow(*row) for row in cursor.execute(SQL.live_workers, (now,))]


def add_counts(cursor: apsw.Cursor, counts: Sequence[MinuteCounts]) -> None:
    cursor.executemany(SQL.add_counts, [msgspec.structs.astuple(one) for one in counts])


def rates(cursor: apsw.Cursor, queue: str | None, since: int) -> list[MinuteCounts]:
    found = cursor.execute(SQL.rates, (since,)) if queue is None else cursor.execute(SQL.rates_of_queue, (queue, since))
    return [MinuteCounts(*row) for row in found]


def open_keys(cursor: apsw.Cursor, queue: str, look: int) -> list[KeyRow]:
    return [KeyRow(*row) for row in cursor.execute(SQL.open_keys, (queue, look))]


def error_groups(cursor: apsw.Cursor, queue: str) -> list[ErrorGroupRow]:
    return [ErrorGroupRow(*row) for row in cursor.execute(SQL.error_groups, (queue,))]


def jobs_of_error_group(cursor: apsw.Cursor, queue: str, group: str, after: str | None, limit: int) -> list[str]:
    return [str(row[0]) for row in cursor.execute(SQL.jobs_of_error_group, (queue, group, after, limit))]
