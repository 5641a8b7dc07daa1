"""Read and administer the children of jobs. Commits write them: see `functions/children.sql`."""

from __future__ import annotations

from ...ports.store import ChildRow, ChildState
from ..child_results import child_key
from .connection import Connection
from .statements import Statements

STATES = (ChildState.UNPROCESSED, ChildState.PROCESSED, ChildState.IGNORED, ChildState.FAILED)


async def children(connection: Connection, sql: Statements, id: str) -> list[ChildRow]:
    """Return the children of a job, sorted by key."""
    rows = await connection.fetch(sql.children, id)
    return sorted((_child_row(*row) for row in rows), key=lambda row: row.key)


async def drop(connection: Connection, sql: Statements, now: int | None, ids: list[str]) -> set[str]:
    """Tell parents that these jobs were deleted. Return the topics of parents that can go on."""
    woken = await connection.fetchval(sql.drop_children, now, ids)
    return {f"queue:{queue}" for queue in woken}


async def wait_again(connection: Connection, sql: Statements, id: str) -> None:
    """Make the parent of a retried job wait for it again, and the job for its own unfinished children."""
    await connection.execute(sql.reset_child, id)
    await connection.execute(sql.wait_for_children, id)


def _child_row(queue: str, child: str, state: int, value: bytes | None, reason: str | None) -> ChildRow:
    is_ignored = STATES[state] is ChildState.IGNORED
    return ChildRow(child_key(queue, child), queue, child, STATES[state], value, reason if is_ignored else None)
