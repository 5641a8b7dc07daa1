"""Read and search runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ports.store import RunRow
from ..run_search import RunStart
from .connection import Connection
from .events import LAST
from .statements import Statements

MAX_INDEXED = 5000  # matching first events: sorting more runs by time takes longer than scanning the newest


async def run(connection: Connection, sql: Statements, id: str) -> RunRow | None:
    row = await connection.fetchrow(sql.run, id)
    return RunRow(*row) if row else None


async def runs(
    connection: Connection,
    sql: Statements,
    flow: str | None,
    statuses: list[str],
    since: int | None,
    until: int | None,
    keys: Sequence[str],
    before: str | None,
    limit: int,
) -> list[RunRow]:
    page = (since or 0, *await _newest_end(connection, sql, until, before), limit)
    if keys:
        rows = await connection.fetch(sql.runs_by_keys, keys[0], list(keys[1:]), flow, statuses, *page)
    elif flow and statuses:
        rows = await connection.fetch(sql.runs_of_flow_with_status, flow, statuses, *page)
    elif flow:
        rows = await connection.fetch(sql.runs_of_flow, flow, *page)
    elif statuses:
        rows = await connection.fetch(sql.runs_with_status, statuses, *page)
    else:
        rows = await connection.fetch(sql.runs, *page)
    return [RunRow(*row) for row in rows]


async def is_common(connection: Connection, sql: Statements, pattern: bytes) -> bool:
    """Return whether the pattern is so common that a scan of the newest runs is faster than the index."""
    return int(await connection.fetchval(sql.count_first_events, pattern, MAX_INDEXED)) >= MAX_INDEXED


async def find_by_index(
    connection: Connection,
    sql: Statements,
    prefix: str,
    pattern: bytes,
    flow: str | None,
    statuses: list[str],
    since: int | None,
    until: int | None,
    before: str | None,
    limit: int,
) -> list[RunStart]:
    """Return runs whose first event contains the pattern as jsonb, each with the body of that event."""
    end = await _newest_end(connection, sql, until, before)
    rows = await connection.fetch(sql.runs_by_first_event, pattern, prefix, flow, statuses, since or 0, *end, limit)
    return [(RunRow(*row[:-1]), row[-1]) for row in rows]


async def scan_by_time(connection: Connection, sql: Statements, prefix: str, *filters: Any) -> list[RunStart]:
    """Return the next runs by time, each with the body of its first event."""
    rows = await runs(connection, sql, *filters)
    bodies = dict(await connection.fetch(sql.first_events, [f"{prefix}{row.kind}:{row.id}" for row in rows]))
    return [(row, bodies.get(n)) for n, row in enumerate(rows, 1)]


async def _newest_end(
    connection: Connection, sql: Statements, until: int | None, before: str | None
) -> tuple[int, str]:
    """Return where a list starts: creation time and id of its newest end."""
    end = (LAST, "")
    if before is not None:
        found = await connection.fetchval(sql.run_created, before)
        end = (found, before) if found is not None else (0, "")
    return end if until is None else min(end, (until, ""))


async def stuck_runs(connection: Connection, sql: Statements, limit: int) -> list[str]:
    return [row[0] for row in await connection.fetch(sql.stuck_runs, limit)]


async def has_open_children(connection: Connection, sql: Statements, call: str) -> bool:
    return bool(await connection.fetchval(sql.open_child, call))
