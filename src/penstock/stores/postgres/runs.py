"""Reading runs."""

from __future__ import annotations

from ...ports.store import RunRow
from .connection import Connection
from .events import LAST
from .statements import Statements


async def run(connection: Connection, sql: Statements, id: str) -> RunRow | None:
    row = await connection.fetchrow(sql.run, id)
    return RunRow(*row) if row else None


async def runs(
    connection: Connection, sql: Statements, flow: str | None, status: str | None, before: str | None, limit: int
) -> list[RunRow]:
    created, id = LAST, ""
    if before is not None:
        found = await connection.fetchval(sql.run_created, before)
        created, id = (found, before) if found is not None else (0, "")
    page = (created, id, limit)
    if flow and status:
        rows = await connection.fetch(sql.runs_of_flow_with_status, flow, status, *page)
    elif flow:
        rows = await connection.fetch(sql.runs_of_flow, flow, *page)
    elif status:
        rows = await connection.fetch(sql.runs_with_status, status, *page)
    else:
        rows = await connection.fetch(sql.runs, *page)
    return [RunRow(*row) for row in rows]


async def loose(connection: Connection, sql: Statements, limit: int) -> list[str]:
    return [row[0] for row in await connection.fetch(sql.loose_runs, limit)]
