"""Read the state store."""

from __future__ import annotations

from ...ports.store import StateRow
from .connection import Connection
from .statements import Statements


async def state(connection: Connection, sql: Statements, key: str, now: int | None) -> StateRow | None:
    row = await connection.fetchrow(sql.state, key, now)
    return StateRow(*row) if row else None


async def states(
    connection: Connection, sql: Statements, prefix: str, after: str | None, limit: int, now: int | None
) -> list[StateRow]:
    rows = await connection.fetch(sql.states, after or "", prefix, prefix + "\U0010ffff", now, limit)
    return [StateRow(*row) for row in rows]
