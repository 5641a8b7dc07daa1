"""Appending events: places are given out as units are applied, the rows written together at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from ...core.ids import event_id
from ...core.payload import MAX_PAYLOAD_BYTES
from ...ports.unit import DELIVER, DELIVERIES, NewEvent
from ..sql_files import Queries

SQL = Queries(__package__, "hot.sql")

# The stream that no one can name counts the events of all streams: readers of the feed keep that number, so it is
# never given out twice, even when the newest events are trimmed.
FEED = ""
TOGETHER = 50  # events told of by one job: enough to share its cost, few enough to be shared among workers


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
        self._rows: list[tuple[int, int, int, bytes, str | None]] = []
        # Stream and row of events that others may wait for, by kind and by how many gates had been opened before.
        self._told: dict[tuple[str, int], list[tuple[str, int]]] = {}
        self._gates = 0

    def append(self, events: Sequence[NewEvent]) -> list[tuple[int, int]]:
        """Gives each event its place, `(ms, seq)`: gapless in its stream, its time never going back."""
        places: list[tuple[int, int]] = []
        for event in events:
            head = self._heads.get(event.stream) or self._head(event.stream)
            head.seq += 1
            if event.kind is not None:
                self._told.setdefault((event.kind, self._gates), []).append((event.stream, len(self._rows)))
            self._rows.append((head.sid, head.seq, head.ms, event.body, event.kind))
            places.append((head.ms, head.seq))
        return places

    def place_gate(self) -> int:
        """The last place given out in the order of all streams: what comes after it is for a gate opened now."""
        self._gates += 1
        return (self._heads.get(FEED) or self._head(FEED)).seq + len(self._rows)

    def flush(self) -> None:
        if not self._rows:
            return
        feed = self._head(FEED)
        first, count = feed.seq + 1, len(self._rows)
        feed.seq += count
        rows = [(pos, *row) for pos, row in enumerate(self._rows, first)]
        self._cursor.executemany(SQL.append, rows)
        self._cursor.executemany(SQL.move_head, [(head.seq, head.ms, head.sid) for head in self._heads.values()])
        if self._told:
            self._deliver(first)
        self._rows.clear()

    def _deliver(self, first: int) -> None:
        """Adds jobs for events that someone waits for. A gate that is opened later looks back by itself.

        Events of a kind go together, but for those before and after which a gate was opened: it may have the ones and
        not the others.
        """
        awaited: dict[str, bool] = {}
        for (kind, _), places in self._told.items():
            if kind not in awaited:
                awaited[kind] = self._cursor.execute(SQL.awaited, (kind,)).fetchone() is not None
            if awaited[kind]:
                self._tell_all(places, first)
        self._told.clear()

    def _tell_all(self, places: list[tuple[str, int]], first: int) -> None:
        told: list[dict[str, Any]] = []
        size = 0
        for stream, row in places:
            _, seq, ms, body, _ = self._rows[row]
            if len(told) == TOGETHER or (told and size + len(body) > MAX_PAYLOAD_BYTES):
                self._tell(told)
                told, size = [], 0
            size += len(body)
            id, cursor = event_id(ms, seq), str(first + row)
            told.append({"stream": stream, "id": id, "cursor": cursor, "body": msgspec.Raw(body)})
        self._tell(told)

    def _tell(self, told: list[dict[str, Any]]) -> None:
        payload = msgspec.json.encode(told[0] if len(told) == 1 else {"events": told})
        job = (f"told.{told[0]['cursor']}", DELIVERIES, DELIVER, self._now, b"{}", payload)
        self._cursor.execute(SQL.know_queue, (DELIVERIES,))
        self._cursor.execute(SQL.deliver, job)
        self._touched.add(f"queue:{DELIVERIES}")

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
