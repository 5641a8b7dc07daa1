"""Reading runs."""

from __future__ import annotations

from typing import Any

from ...ports.store import RunRow
from ..run_search import RunStart
from .connection import Connection
from .events import LAST
from .statements import Statements

COMMON = 5000  # first events alike: sorting so many runs by time takes longer than walking through the newest


async def run(connection: Connection, sql: Statements, id: str) -> RunRow | None:
    row = await connection.fetchrow(sql.run, id)
    return RunRow(*row) if row else None


async def runs(
    connection: Connection,
    sql: Statements,
    flow: str | None,
    status: str | None,
    since: int | None,
    until: int | None,
    before: str | None,
    limit: int,
) -> list[RunRow]:
    page = (since or 0, *await _end(connection, sql, until, before), limit)
    if flow and status:
        rows = await connection.fetch(sql.runs_of_flow_with_status, flow, status, *page)
    elif flow:
        rows = await connection.fetch(sql.runs_of_flow, flow, *page)
    elif status:
        rows = await connection.fetch(sql.runs_with_status, status, *page)
    else:
        rows = await connection.fetch(sql.runs, *page)
    return [RunRow(*row) for row in rows]


async def common(connection: Connection, sql: Statements, pattern: bytes) -> bool:
    """Whether so many first events contain the pattern that walking through the runs finds some sooner."""
    return int(await connection.fetchval(sql.begun_alike, pattern, COMMON)) >= COMMON


async def looked_up(
    connection: Connection,
    sql: Statements,
    prefix: str,
    pattern: bytes,
    flow: str | None,
    status: str | None,
    since: int | None,
    until: int | None,
    before: str | None,
    limit: int,
) -> list[RunStart]:
    """By the index: runs whose first event contains the pattern as jsonb sees it, each with that event's body."""
    end = await _end(connection, sql, until, before)
    rows = await connection.fetch(sql.runs_begun, pattern, prefix, flow, status, since or 0, *end, limit)
    return [(RunRow(*row[:8]), row[8]) for row in rows]


async def walked(connection: Connection, sql: Statements, prefix: str, *which: Any) -> list[RunStart]:
    """By time: the next runs there are, each with the body of its first event."""
    rows = await runs(connection, sql, *which)
    bodies = dict(await connection.fetch(sql.first_events, [prefix + row.id for row in rows]))
    return [(row, bodies.get(n)) for n, row in enumerate(rows, 1)]


async def _end(connection: Connection, sql: Statements, until: int | None, before: str | None) -> tuple[int, str]:
    """Where a list begins, its newest end."""
    end = (LAST, "")
    if before is not None:
        found = await connection.fetchval(sql.run_created, before)
        end = (found, before) if found is not None else (0, "")
    return end if until is None else min(end, (until, ""))


async def loose(connection: Connection, sql: Statements, limit: int) -> list[str]:
    return [row[0] for row in await connection.fetch(sql.stuck_runs, limit)]
