"""Read waits, memos and the events that may resolve a wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.ids import parse_feed_cursor
from ...ports.store import FeedItem, WaitRow
from .connection import Connection
from .events import LAST, feed_items
from .statements import Statements

LAST_OF_STAMP = 2**31 - 1
KINDS = ("time", "event", "trigger", "call", "flow")


async def wait(connection: Connection, sql: Statements, id: str) -> WaitRow | None:
    row = await connection.fetchrow(sql.wait, id)
    return _wait_row(row) if row is not None else None


async def memos(connection: Connection, sql: Statements, scope: str) -> dict[str, bytes]:
    return dict(await connection.fetch(sql.memos, scope))


async def waits_of_run(
    connection: Connection, sql: Statements, run: str, kind: str | None, after: str | None, limit: int
) -> list[WaitRow]:
    rows = await connection.fetch(sql.pending_waits_of_run, run, kind, after or "", limit)
    return [_wait_row(row) for row in rows]


async def waits_by_time(
    connection: Connection,
    sql: Statements,
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
        rows = await connection.fetch(sql.waits_of_run_by_time, run, state, kind, *page)
        return [_wait_row(row) for row in rows]
    found: list[WaitRow] = []
    for one in KINDS if kind is None else (kind,):
        found += [_wait_row(row) for row in await connection.fetch(sql.waits_by_time, one, state, *page)]
    return sorted(found, key=lambda row: (row.created, row.id), reverse=True)[:limit]


def _wait_row(row: Any) -> WaitRow:
    return WaitRow(*(*row[:12], f"{row[12]}.{LAST_OF_STAMP}"))  # events of its own transaction are not delivered to it


async def waits_for_topic(
    connection: Connection,
    sql: Statements,
    topic: str,
    keys: Sequence[str] | None,
    before: str | None,
    after: str | None,
    limit: int,
) -> list[WaitRow]:
    # Topic locks order the two: an event gets its stamp before a wait for its kind is created, or after that commits.
    stamp = parse_feed_cursor(before)[0] if before is not None else LAST
    if keys is None:
        rows = await connection.fetch(sql.waits_for_topic, topic, after or "", limit, stamp)
    else:
        rows = await connection.fetch(sql.waits_for_topic_and_keys, topic, list(keys), after or "", limit, stamp)
    return [_wait_row(row) for row in rows]


async def events_by_kind(
    connection: Connection, sql: Statements, kind: str, since: str | None, after: str | None, limit: int
) -> list[FeedItem]:
    return feed_items(await connection.fetch(sql.events_by_kind, kind, *parse_feed_cursor(after or ""), since, limit))
