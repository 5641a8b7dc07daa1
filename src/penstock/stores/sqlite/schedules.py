"""Schedules: kept here, moved on by the commit that fires them."""

from __future__ import annotations

import apsw

from ...ports.store import DueSchedules, ScheduleRow
from .events import SQL


def put(cursor: apsw.Cursor, row: ScheduleRow, was: ScheduleRow | None) -> bool:
    """Whether it was still as it was and now is as it is to be."""
    values = (row.spec, row.target, row.next, row.last, row.paused, row.fired)
    if was is None:
        return bool(cursor.execute(SQL.add_schedule, (row.id, *values)).fetchall())
    before = (was.spec, was.target, was.next, was.last, was.paused, was.fired)
    return bool(cursor.execute(SQL.change_schedule, (*values, row.id, *before)).fetchall())


def remove(cursor: apsw.Cursor, id: str, was: ScheduleRow | None) -> bool:
    if was is None:
        return bool(cursor.execute(SQL.remove_schedule, (id,)).fetchall())
    return bool(cursor.execute(SQL.remove_schedule_as_it_was, (id, was.spec, was.target)).fetchall())


def one(cursor: apsw.Cursor, id: str) -> ScheduleRow | None:
    row = cursor.execute(SQL.schedule, (id,)).fetchone()
    return _row(row) if row is not None else None


def all(cursor: apsw.Cursor) -> list[ScheduleRow]:
    return [_row(row) for row in cursor.execute(SQL.schedules)]


def due(cursor: apsw.Cursor, now: int, after: ScheduleRow | None, limit: int) -> DueSchedules:
    place = (after.next, after.id) if after is not None else (0, "")
    return DueSchedules(now, [_row(row) for row in cursor.execute(SQL.due_schedules, (now, *place, limit))])


def next_due(cursor: apsw.Cursor, after_ms: int) -> int | None:
    row = cursor.execute(SQL.next_schedule, (after_ms,)).fetchone()
    return row[0] if row else None


def _row(row: tuple[object, ...]) -> ScheduleRow:
    id, spec, target, next_, last, paused, fired = row
    return ScheduleRow(id, spec, target, next_, last, bool(paused), fired)  # type: ignore[arg-type]
