"""Schedules: kept here, moved on by the commit that fires them."""

from __future__ import annotations

import apsw

from ...ports.store import ScheduleRow
from .events import SQL


def upsert(cursor: apsw.Cursor, row: ScheduleRow) -> None:
    cursor.execute(SQL.upsert_schedule, (row.id, row.spec, row.target, row.next, row.last, row.paused))


def remove(cursor: apsw.Cursor, id: str) -> bool:
    return bool(cursor.execute(SQL.remove_schedule, (id,)).fetchall())


def all(cursor: apsw.Cursor) -> list[ScheduleRow]:
    return [_row(row) for row in cursor.execute(SQL.schedules)]


def due(cursor: apsw.Cursor, now: int, limit: int) -> list[ScheduleRow]:
    return [_row(row) for row in cursor.execute(SQL.due_schedules, (now, limit))]


def next_due(cursor: apsw.Cursor) -> int | None:
    row = cursor.execute(SQL.next_schedule).fetchone()
    return row[0] if row else None


def _row(row: tuple[object, ...]) -> ScheduleRow:
    id, spec, target, next_, last, paused, fired = row
    return ScheduleRow(id, spec, target, next_, last, bool(paused), fired)  # type: ignore[arg-type]
