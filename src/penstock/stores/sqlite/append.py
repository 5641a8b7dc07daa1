"""Appending events: places are given out as units are applied, the rows written together at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import apsw
import msgspec

from ...core.ids import event_id
from ...ports.unit import DELIVER, DELIVERIES, NewEvent, NewJob
from .rows import write_rows
from .statements import SQL
from .tape import Tape

# The stream that no one can name counts the events of all streams: readers of the feed keep that number, so it is
# never given out twice, even when the newest events are trimmed.
FEED = ""


class _Head:
    """The last place given out in a stream."""

    __slots__ = ("grown", "ms", "seq", "sid")

    def __init__(self, sid: int | None, seq: int, ms: int) -> None:
        self.sid = sid  # None: there is no such stream yet
        self.seq = seq
        self.ms = ms
        self.grown = 0  # the sid, once something was appended


class Appender:
    """The events of one piece of work. Nothing is written until `flush`, which must come before the commit."""

    def __init__(self, cursor: apsw.Cursor, now: int, touched: set[str], tape: Tape) -> None:
        self._cursor = cursor
        self._now = now
        self._touched = touched
        self._tape = tape
        self._heads: dict[str, _Head] = {}
        self._grown: list[tuple[str, _Head]] = []
        self._values: list[Any] = []
        self._told: list[
            tuple[str, str, int, int, int]
        ] = []  # kind, stream, ms, seq and pos of what others may wait for
        self._last_sid = 0

    def unknown(self, streams: set[str]) -> set[str]:
        """Those of the streams, and of what every append needs, whose heads are still to be read."""
        return {FEED, *streams}.difference(self._heads)

    def know(self, streams: Iterable[str], rows: Iterable[tuple[str, int, int, int]]) -> None:
        """The heads of streams that were read; those without a row do not exist."""
        now, heads = self._now, self._heads
        for stream, sid, seq, ms in rows:
            heads[stream] = _Head(sid, seq, max(ms, now))
        for stream in streams:
            if stream not in heads:
                heads[stream] = _Head(None, 0, now)

    @property
    def position(self) -> int:
        """The last place given out in the order of all streams."""
        return self._heads[FEED].seq

    def append(self, events: Sequence[NewEvent]) -> list[tuple[int, int]]:
        """Gives each event its place, `(ms, seq)`: gapless in its stream, its time never going back."""
        feed = self._head(FEED)
        places: list[tuple[int, int]] = []
        for event in events:
            head = self._head(event.stream)
            feed.seq += 1
            head.seq += 1
            self._values += (feed.seq, head.grown, head.seq, head.ms, event.body, event.kind)
            if event.kind is not None:
                self._told.append((event.kind, event.stream, head.ms, head.seq, feed.seq))
            places.append((head.ms, head.seq))
        return places

    def flush(self) -> None:
        """Writes the events; the heads of their streams go on the tape."""
        for stream, head in self._grown:
            if head.sid is None:
                self._tape.add(("open_stream", head.grown, stream, head.seq, head.ms))
            else:
                self._tape.add(("move_stream", head.grown, head.seq, head.ms))
        self._grown.clear()
        write_rows(self._cursor, SQL.append, 6, self._values)
        self._values.clear()
        if self._told:
            self._deliver()

    def _deliver(self) -> None:
        """Adds a job for each event that someone waits for. A gate that is opened later looks back by itself."""
        awaited: dict[str, bool] = {}
        for kind, stream, ms, seq, pos in self._told:
            if kind not in awaited:
                awaited[kind] = self._cursor.execute(SQL.awaited, (kind,)).fetchone() is not None
            if awaited[kind]:
                payload = msgspec.json.encode({"stream": stream, "id": event_id(ms, seq), "cursor": str(pos)})
                job = NewJob(f"told.{pos}", DELIVERIES, DELIVER, payload)
                self._tape.add_job(job, self._now)
                self._tape.add(("know_queue", DELIVERIES))
                self._touched.add(f"queue:{DELIVERIES}")
        self._told.clear()

    def _head(self, stream: str) -> _Head:
        """The head of a stream that is about to grow."""
        head = self._heads.get(stream)
        if head is None:
            row = self._cursor.execute(SQL.head, (stream,)).fetchone()
            self.know((stream,), [(stream, *row)] if row else ())
            head = self._heads[stream]
        if not head.grown:
            head.grown = head.sid or self._new_sid()
            self._grown.append((stream, head))
            if stream != FEED:
                self._touched.add(f"stream:{stream}")
                self._touched.add("events")
        return head

    def _new_sid(self) -> int:
        if not self._last_sid:
            self._last_sid = self._cursor.execute(SQL.last_sid).fetchone()[0]  # type: ignore[index]
        self._last_sid += 1
        return self._last_sid
