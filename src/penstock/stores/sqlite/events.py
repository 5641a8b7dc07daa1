"""Reading streams."""

from __future__ import annotations

from typing import Any

import apsw

from ...core.events import Event, decode_event
from ...core.ids import event_seq
from ...ports.store import FeedItem
from ..sql_files import Queries

SQL = Queries(__package__, "admin.sql")
LAST = 2**62


def read(
    cursor: apsw.Cursor, stream: str, after: str | None, before: str | None, limit: int, backward: bool
) -> list[Event]:
    low = event_seq(after) if after else 0
    high = event_seq(before) if before else LAST
    row = cursor.execute(SQL.stream, (stream,)).fetchone()
    if row is None:
        return []
    sql = SQL.read_backward if backward else SQL.read_forward
    rows: Any = cursor.execute(sql, (row[0], low, high, limit))
    return [decode_event(stream, seq, ms, body) for seq, ms, body in rows]


def feed(cursor: apsw.Cursor, after: str | None, limit: int) -> list[FeedItem]:
    rows: Any = cursor.execute(SQL.feed_end) if after is None else cursor.execute(SQL.feed, (int(after or 0), limit))
    return [FeedItem(str(pos), stream, decode_event(stream, seq, ms, body)) for pos, stream, seq, ms, body in rows]


def names(cursor: apsw.Cursor, prefix: str, after: str | None, limit: int) -> list[str]:
    rows = cursor.execute(SQL.stream_names, (after or "", prefix, prefix + "\U0010ffff", limit))
    return [row[0] for row in rows]


def trim(cursor: apsw.Cursor, stream: str, keep: int | None, before_ms: int | None) -> int:
    row = cursor.execute(SQL.stream, (stream,)).fetchone()
    if row is None:
        return 0
    sid, last = row
    removed = 0
    if keep is not None:
        cursor.execute(SQL.trim_by_seq, (sid, last - keep))
        removed += cursor.connection.changes()
    if before_ms is not None:
        cursor.execute(SQL.trim_by_time, (sid, sid, before_ms))
        removed += cursor.connection.changes()
    return removed
