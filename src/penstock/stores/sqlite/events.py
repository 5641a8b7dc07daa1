"""Append events and read streams.

Appending assigns positions while units are applied; the rows are written together at the end of the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from ...core.events import Event, decode_event
from ...core.ids import event_id, event_seq, parse_feed_cursor
from ...core.payload import MAX_PAYLOAD_BYTES
from ...ports.store import FeedItem, StreamRow
from ...ports.unit import DELIVER, DELIVERIES, NewEvent
from .statements import ADMIN, COMMIT
from .stream_heads import StreamHead, StreamHeads

LAST = 2**62
# A stream with an empty name, which no caller can use, counts the events of all streams. Readers of the feed keep that
# number, so it is never assigned twice, even when the newest events are trimmed.
FEED = ""
MAX_EVENTS_PER_DELIVERY = 50  # enough to share the cost of a job, few enough to spread over workers


class Appender:
    """Collects the events of one piece of work. Call `flush` before the commit: nothing is written earlier."""

    def __init__(
        self, cursor: apsw.Cursor, now: int, touched: set[str], heads: StreamHeads, *, is_careful: bool = False
    ) -> None:
        self._cursor = cursor
        self._known_heads = heads
        self._is_careful = is_careful  # check the last position of each stream against its events
        self._now = now
        self._touched = touched
        self._heads: dict[str, StreamHead] = {}
        self._rows: list[tuple[StreamHead, int, int, bytes, str | None, bytes | None]] = []
        # Stream and row of events that waits may match, by kind and by the number of waits created before.
        self._matchable: dict[tuple[str, int], list[tuple[str, int]]] = {}
        self._new_waits = 0

    def append(self, events: Sequence[NewEvent]) -> list[tuple[int, int]]:
        """Assign each event its position `(ms, seq)`: gapless in its stream, its time never going back."""
        positions: list[tuple[int, int]] = []
        for event in events:
            head = self._heads.get(event.stream) or self._head(event.stream)
            head.seq += 1
            if event.kind is not None:
                self._matchable.setdefault((event.kind, self._new_waits), []).append((event.stream, len(self._rows)))
            self._rows.append((head, head.seq, head.ms, event.body, event.kind, event.original))
            positions.append((head.ms, head.seq))
        return positions

    def wait_position(self) -> int:
        """Return the last position over all streams: a wait created now matches events after it."""
        self._new_waits += 1
        return (self._heads.get(FEED) or self._head(FEED)).seq + len(self._rows)

    def discard(self) -> None:
        """Forget what was not written, after the caller has rolled back."""
        self._heads.clear()
        self._known_heads.forget()
        self._rows.clear()
        self._matchable.clear()

    def flush(self) -> None:
        """Write the collected events, and jobs that deliver those with pending waits."""
        if not self._rows:
            return
        feed = self._head(FEED)
        first, count = feed.seq + 1, len(self._rows)
        feed.seq += count
        known = [(head.seq, head.ms, head.sid) for head in self._heads.values() if head.sid is not None]
        before = self._cursor.connection.total_changes()
        self._cursor.executemany(COMMIT.update_stream_head, known)
        if self._cursor.connection.total_changes() != before + len(known):
            raise LookupError("a stream has been deleted by the same connection")  # the careful commit reads again
        if len(known) < len(self._heads):
            self._insert_streams()
        rows = [
            (pos, head.sid, seq, ms, body, kind, original)
            for pos, (head, seq, ms, body, kind, original) in enumerate(self._rows, first)
        ]
        self._cursor.executemany(COMMIT.insert_event, rows)
        if self._matchable:
            self._deliver(first)
        self._rows.clear()

    def _insert_streams(self) -> None:
        for stream, head in self._heads.items():
            if head.sid is None:
                self._cursor.execute(COMMIT.insert_stream, (stream, head.seq, head.ms))
                head.sid = self._cursor.connection.last_insert_rowid()

    def _deliver(self, first: int) -> None:
        """Add jobs that deliver events with pending waits. A wait that is created later looks back by itself.

        Events of one kind share a job, unless a wait was created between them: it may match only the later ones.
        """
        has_waits: dict[str, bool] = {}
        for (kind, _), positions in self._matchable.items():
            if kind not in has_waits:
                has_waits[kind] = self._cursor.execute(COMMIT.has_pending_wait, (kind,)).fetchone() is not None
            if has_waits[kind]:
                self._add_deliveries(positions, first)
        self._matchable.clear()

    def _add_deliveries(self, positions: list[tuple[str, int]], first: int) -> None:
        batch: list[dict[str, Any]] = []
        size = 0
        for stream, row in positions:
            _, seq, ms, shown, _, original = self._rows[row]
            body = shown if original is None else original
            if len(batch) == MAX_EVENTS_PER_DELIVERY or (batch and size + len(body) > MAX_PAYLOAD_BYTES):
                self._add_delivery(batch)
                batch, size = [], 0
            size += len(body)
            id, cursor = event_id(ms, seq), str(first + row)
            batch.append({"stream": stream, "id": id, "cursor": cursor, "body": msgspec.Raw(body)})
        self._add_delivery(batch)

    def _add_delivery(self, batch: list[dict[str, Any]]) -> None:
        payload = msgspec.json.encode(batch[0] if len(batch) == 1 else {"events": batch})
        job = (f"delivery.{batch[0]['cursor']}", DELIVERIES, DELIVER, self._now, b"{}", payload)
        self._cursor.execute(COMMIT.insert_queue, (DELIVERIES,))
        self._cursor.execute(COMMIT.insert_delivery, job)
        self._touched.add(f"queue:{DELIVERIES}")

    def _head(self, stream: str) -> StreamHead:
        head = self._known_heads.known.get(stream)
        if head is None or self._is_careful:
            head = self._known_heads.known[stream] = self._read_head(stream)
        head.ms = max(head.ms, self._now)
        self._heads[stream] = head
        if stream != FEED:
            self._touched.add(f"stream:{stream}")
            self._touched.add("events")
        return head

    def _read_head(self, stream: str) -> StreamHead:
        row = self._cursor.execute(COMMIT.stream_head, (stream,)).fetchone()
        sid, seq, ms = row or (None, 0, self._now)
        if self._is_careful:
            sql = COMMIT.last_pos if stream == FEED else COMMIT.last_seq
            last = self._cursor.execute(sql, (sid or 0, LAST)).fetchone()
            seq = max(seq, *(last or (0,)))
        return StreamHead(sid, seq, ms)


def read(
    cursor: apsw.Cursor, stream: str, after: str | None, before: str | None, limit: int, backward: bool
) -> list[Event]:
    """Return the events of a stream between two cursors."""
    low = event_seq(after) if after else 0
    high = event_seq(before) if before else LAST
    row = cursor.execute(ADMIN.stream, (stream,)).fetchone()
    if row is None:
        return []
    sql = ADMIN.read_backward if backward else ADMIN.read_forward
    rows: Any = cursor.execute(sql, (row[0], low, high, limit))
    return [decode_event(stream, seq, ms, body) for seq, ms, body in rows]


def changed_streams(cursor: apsw.Cursor, after: int | None) -> tuple[list[str] | None, int]:
    """Return the streams with events after a position, or None without one, and the last position."""
    row = cursor.execute(ADMIN.last_position).fetchone()
    last = int(row[0]) if row else 0
    if after is None:
        return None, last
    return [str(name) for (name,) in cursor.execute(ADMIN.changed_streams, (after,))], last


def feed(cursor: apsw.Cursor, after: str | None, limit: int) -> list[FeedItem]:
    """Return events of all streams after a cursor, or the last one without a cursor."""
    if after is None:
        rows: Any = cursor.execute(ADMIN.last_feed_item)
    else:
        rows = cursor.execute(ADMIN.feed, (parse_feed_cursor(after)[0], limit))
    return [FeedItem(str(pos), stream, decode_event(stream, seq, ms, body)) for pos, stream, seq, ms, body in rows]


def stream_names(cursor: apsw.Cursor, prefix: str, after: str | None, limit: int) -> list[str]:
    # One lower bound: SQLite would seek the smaller of two and read every name from there on.
    first = max(prefix, (after or "") + "\0")  # never the stream without a name, which counts all events
    rows = cursor.execute(ADMIN.stream_names, (first, prefix + "\U0010ffff", limit))
    return [row[0] for row in rows]


def newest_streams(cursor: apsw.Cursor, prefix: str, before: str | None, limit: int) -> list[StreamRow]:
    rows: Any = cursor.execute(ADMIN.newest_streams, (prefix, before, limit))
    return [StreamRow(name, seq, ms) for name, seq, ms in rows]


def trim(cursor: apsw.Cursor, stream: str, keep: int | None, before_ms: int | None, limit: int) -> int:
    """Delete up to `limit` of the oldest events of a stream. Return how many."""
    row = cursor.execute(ADMIN.stream, (stream,)).fetchone()
    if row is None:
        return 0
    sid, last = row
    oldest = cursor.execute(ADMIN.oldest_event, (sid,)).fetchone()
    surplus = last - keep if keep is not None else 0
    before = before_ms or 0
    if oldest is None or (oldest[0] > surplus and oldest[1] >= before):
        return 0
    cursor.execute(ADMIN.trim, (sid, surplus, before, limit))
    return cursor.connection.changes()
