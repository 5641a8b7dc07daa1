"""Appending events: places are given out as units are applied, the rows written together at the end."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from ...ports.unit import NewEvent
from ..queries import Queries

SQL = Queries(__package__, "hot.sql")

# The stream that no one can name counts the events of all streams: readers of the feed keep that number, so it is
# never given out twice, even when the newest events are trimmed.
FEED = ""


class _Head:
    """The last place given out in a stream."""

    __slots__ = ("ms", "seq", "sid")

    def __init__(self, sid: int, seq: int, ms: int) -> None:
        self.sid = sid
        self.seq = seq
        self.ms = ms


class Appender:
    """The events of one piece of work. Nothing is written until `flush`, which must come before the commit."""

    def __init__(self, cursor: apsw.Cursor, now: int, touched: set[str]) -> None:
        self._cursor = cursor
        self._now = now
        self._touched = touched
        self._heads: dict[str, _Head] = {}
        self._rows: list[tuple[int, int, int, bytes]] = []

    def append(self, events: Sequence[NewEvent]) -> list[tuple[int, int]]:
        """Gives each event its place, `(ms, seq)`: gapless in its stream, its time never going back."""
        places: list[tuple[int, int]] = []
        for event in events:
            head = self._heads.get(event.stream) or self._head(event.stream)
            head.seq += 1
            self._rows.append((head.sid, head.seq, head.ms, event.body))
            places.append((head.ms, head.seq))
        return places

    def flush(self) -> None:
        if not self._rows:
            return
        feed = self._head(FEED)
        first, count = feed.seq + 1, len(self._rows)
        feed.seq += count
        rows = [(pos, *row) for pos, row in enumerate(self._rows, first)]
        self._cursor.executemany(SQL.append, rows)
        self._cursor.executemany(SQL.move_head, [(head.seq, head.ms, head.sid) for head in self._heads.values()])
        self._rows.clear()

    def _head(self, stream: str) -> _Head:
        row = self._cursor.execute(SQL.head, (stream,)).fetchone()
        if row is None:
            self._cursor.execute(SQL.new_stream, (stream, self._now))
            row = (self._cursor.connection.last_insert_rowid(), 0, self._now)
        sid, seq, ms = row
        head = self._heads[stream] = _Head(sid, seq, max(ms, self._now))
        if stream != FEED:
            self._touched.add(f"stream:{stream}")
            self._touched.add("events")
        return head
