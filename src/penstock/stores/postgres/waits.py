"""Read waits, memos and the events that may resolve a wait."""

from __future__ import annotations

from collections.abc import Sequence

from ...ports.store import FeedItem, WaitRow
from .connection import Connection
from .events import LAST, feed_items, parse_cursor
from .statements import Statements

KINDS = ("time", "event", "trigger", "flow")


async def wait(connection: Connection, sql: Statements, id: str) -> WaitRow | None:
    row = await connection.fetchrow(sql.wait, id)
    return WaitRow(*row) if row is not None else None


async def memos(connection: Connection, sql: Statements, scope: str) -> dict[str, bytes]:
    return dict(await connection.fetch(sql.memos, scope))


async def pending_waits(
    connection: Connection, sql: Statements, run: str | None, kind: str | None, after: str | None, limit: int
) -> list[WaitRow]:
    if run is not None:
        rows = await connection.fetch(sql.pending_waits_of_run, run, kind, after or "", limit)
        return [WaitRow(*row) for row in rows]
    found: list[WaitRow] = []
    for each in KINDS if kind is None else (kind,):
        found += [WaitRow(*row) for row in await connection.fetch(sql.pending_waits, each, after or "", limit)]
    return sorted(found, key=lambda row: row.id)[:limit]


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
    stamp = parse_cursor(before)[0] if before is not None else LAST
    wanted = list(keys) if keys is not None else None
    rows = await connection.fetch(sql.waits_for_topic, topic, wanted, after or "", limit, stamp)
    return [WaitRow(*row) for row in rows]


async def events_by_kind(
    connection: Connection, sql: Statements, kind: str, since: str | None, after: str | None, limit: int
) -> list[FeedItem]:
    return feed_items(await connection.fetch(sql.events_by_kind, kind, *parse_cursor(after), since, limit))
