"""Reading gates and the events that may open them."""

from __future__ import annotations

from collections.abc import Sequence

from ...ports.store import FeedItem, WaitRow
from .connection import Connection
from .events import LAST, items, place
from .statements import Statements

KINDS = ("time", "event", "trigger", "flow")


async def one(connection: Connection, sql: Statements, id: str) -> WaitRow | None:
    row = await connection.fetchrow(sql.wait, id)
    return WaitRow(*row) if row is not None else None


async def memos(connection: Connection, sql: Statements, scope: str) -> dict[str, bytes]:
    return dict(await connection.fetch(sql.memos, scope))


async def open_ones(
    connection: Connection, sql: Statements, run: str | None, kind: str | None, after: str | None, limit: int
) -> list[WaitRow]:
    if run is not None:
        rows = await connection.fetch(sql.open_waits_of_run, run, kind, after or "", limit)
        return [WaitRow(*row) for row in rows]
    found: list[WaitRow] = []
    for one in KINDS if kind is None else (kind,):
        found += [WaitRow(*row) for row in await connection.fetch(sql.open_waits, one, after or "", limit)]
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
    # The stamp of an event is taken after whoever opened a gate for its kind has committed, or before it began to.
    stamp = place(before)[0] if before is not None else LAST
    wanted = list(keys) if keys is not None else None
    return [WaitRow(*row) for row in await connection.fetch(sql.listening, topic, wanted, after or "", limit, stamp)]


async def events_by_kind(
    connection: Connection, sql: Statements, kind: str, since: str | None, after: str | None, limit: int
) -> list[FeedItem]:
    return items(await connection.fetch(sql.told, kind, *place(after), since, limit))
