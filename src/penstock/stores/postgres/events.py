"""Read and trim streams, and read the feed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...core.events import Event, decode_event
from ...core.ids import event_seq, parse_feed_cursor
from ...ports.store import FeedItem, StreamRow
from .connection import Connection
from .statements import Statements

LAST = 2**62


async def read(
    connection: Connection,
    sql: Statements,
    stream: str,
    after: str | None,
    before: str | None,
    limit: int,
    backward: bool,
) -> list[Event]:
    low = event_seq(after) if after else 0
    high = event_seq(before) if before else LAST
    rows = await connection.fetch(sql.read_backward if backward else sql.read_forward, stream, low, high, limit)
    return [decode_event(stream, seq, ms, body) for seq, ms, body in rows]


async def feed(connection: Connection, sql: Statements, after: str | None, limit: int) -> list[FeedItem]:
    if after is None:
        return feed_items(await connection.fetch(sql.feed_end))
    return feed_items(await connection.fetch(sql.feed, *parse_feed_cursor(after), limit))


def feed_items(rows: Iterable[Any]) -> list[FeedItem]:
    return [
        FeedItem(f"{stamp}.{n}", stream, decode_event(stream, seq, ms, body))
        for stamp, n, stream, seq, ms, body in rows
    ]


async def stream_names(
    connection: Connection, sql: Statements, prefix: str, after: str | None, limit: int
) -> list[str]:
    rows = await connection.fetch(sql.stream_names, after or "", prefix, prefix + "\U0010ffff", limit)
    return [row[0] for row in rows]


async def newest_streams(
    connection: Connection, sql: Statements, prefix: str, before: str | None, limit: int
) -> list[StreamRow]:
    return [StreamRow(*row) for row in await connection.fetch(sql.newest_streams, prefix, before, limit)]


async def trim(
    connection: Connection, sql: Statements, stream: str, keep: int | None, before_ms: int | None, limit: int
) -> int:
    """Delete up to `limit` of the oldest events of a stream. Return how many."""
    row = await connection.fetchrow(sql.stream, stream)
    if row is None:
        return 0
    sid, last = row
    surplus = last - keep if keep is not None else 0
    return row_count(await connection.execute(sql.trim, sid, surplus, before_ms or 0, limit))


def row_count(status: str) -> int:
    """Return how many rows a statement changed, from its command tag: `DELETE 7`."""
    return int(status.rpartition(" ")[2])
