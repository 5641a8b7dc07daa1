"""Read waits, and the events that may resolve them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from ...core.events import decode_event
from ...ports.store import FeedItem, WaitRow
from .events import LAST
from .statements import ADMIN as SQL

KINDS = ("time", "event", "trigger", "call", "flow")


def get(cursor: apsw.Cursor, id: str) -> WaitRow | None:
    row = cursor.execute(SQL.wait, (id,)).fetchone()
    return _wait_row(row) if row is not None else None


def memos(cursor: apsw.Cursor, scope: str) -> dict[str, bytes]:
    rows: Any = cursor.execute(SQL.memos, (scope,))
    return dict(rows.fetchall())


def waits_of_run(cursor: apsw.Cursor, run: str, kind: str | None, after: str | None, limit: int) -> list[WaitRow]:
    rows: Any = cursor.execute(SQL.pending_waits_of_run, (run, kind, after or "", limit))
    return [_wait_row(row) for row in rows]


def waits_by_time(
    cursor: apsw.Cursor,
    run: str | None,
    kind: str | None,
    state: str,
    since: int | None,
    until: int | None,
    before: str | None,
    limit: int,
) -> list[WaitRow]:
    page = (since or 0, LAST if until is None else until, before, limit)
    if run is not None:
        rows: Any = cursor.execute(SQL.waits_of_run_by_time, (run, state, kind, *page))
        return [_wait_row(row) for row in rows]
    found: list[WaitRow] = []
    for one in KINDS if kind is None else (kind,):
        rows = cursor.execute(SQL.waits_by_time, (one, state, *page))
        found += [_wait_row(row) for row in rows]
    return sorted(found, key=lambda row: (row.created, row.id), reverse=True)[:limit]


def _wait_row(row: Any) -> WaitRow:
    return WaitRow(*(*row[:12], str(row[12])))


def waits_for_topic(
    cursor: apsw.Cursor, topic: str, keys: Sequence[str] | None, before: str | None, after: str | None, limit: int
) -> list[WaitRow]:
    last = int(before) if before is not None else LAST
    if keys is None:
        rows: Any = cursor.execute(SQL.waits_for_topic_and_any_key, (topic, after or "", limit, last))
        return [_wait_row(row) for row in rows]
    # A page of each key, in the order of the index: with `key IN (…)`, each page would read all waits of the topic.
    found: list[WaitRow] = []
    for key in keys:
        rows = cursor.execute(SQL.waits_for_topic_and_key, (topic, key, after or "", limit, last))
        found += [_wait_row(row) for row in rows]
    return sorted(found, key=lambda row: row.id)[:limit]


def events_by_kind(cursor: apsw.Cursor, kind: str, since: str | None, after: str | None, limit: int) -> list[FeedItem]:
    rows: Any = cursor.execute(SQL.events_by_kind, (kind, int(after or 0), since, limit))
    return [FeedItem(str(pos), stream, decode_event(stream, seq, ms, body)) for pos, stream, seq, ms, body in rows]
