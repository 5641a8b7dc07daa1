"""Read and write schedules. The commit that fires a schedule advances it."""

from __future__ import annotations

import apsw

from ...ports.store import DueSchedules, ScheduleRow
from .statements import ADMIN as SQL


def put(cursor: apsw.Cursor, row: ScheduleRow, was: ScheduleRow | None) -> bool:
    """Write a schedule if it is still as it `was`. Return whether it was written."""
    values = (row.spec, row.target, row.next, row.last, row.paused, row.fired)
    if was is None:
        return bool(cursor.execute(SQL.add_schedule, (row.id, *values)).fetchall())
    before = (was.spec, was.target, was.next, was.last, was.paused, was.fired)
    return bool(cursor.execute(SQL.change_schedule, (*values, row.id, *before)).fetchall())


def remove(cursor: apsw.Cursor, id: str, was: ScheduleRow | None) -> bool:
    if was is None:
        return bool(cursor.execute(SQL.remove_schedule, (id,)).fetchall())
    return bool(cursor.execute(SQL.remove_unchanged_schedule, (id, was.spec, was.target)).fetchall())


def get(cursor: apsw.Cursor, id: str) -> ScheduleRow | None:
    row = cursor.execute(SQL.schedule, (id,)).fetchone()
    return _row(row) if row is not None else None


def list_(cursor: apsw.Cursor) -> list[ScheduleRow]:
    return [_row(row) for row in cursor.execute(SQL.schedules)]


def due(cursor: apsw.Cursor, now: int, after: ScheduleRow | None, limit: int) -> DueSchedules:
    position = (after.next, after.id) if after is not None else (-(2**63), "")
    return DueSchedules(now, [_row(row) for row in cursor.execute(SQL.due_schedules, (now, *position, limit))])


def next_due(cursor: apsw.Cursor, after_ms: int) -> int | None:
    row = cursor.execute(SQL.next_schedule, (after_ms,)).fetchone()
    return row[0] if row else None


def _row(row: tuple[object, ...]) -> ScheduleRow:
    id, spec, target, next_, last, paused, fired = row
    return ScheduleRow(id, spec, target, next_, last, bool(paused), fired)  # type: ignore[arg-type]
