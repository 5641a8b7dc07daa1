"""Read and search runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import apsw

from ...ports.store import RunRow
from ..run_search import RunStart
from .events import LAST
from .statements import ADMIN as SQL


def run(cursor: apsw.Cursor, id: str) -> RunRow | None:
    row = cursor.execute(SQL.run, (id,)).fetchone()
    return _row(row) if row else None


def runs(
    cursor: apsw.Cursor,
    flow: str | None,
    status: str | None,
    since: int | None,
    until: int | None,
    keys: Sequence[str],
    before: str | None,
    limit: int,
) -> list[RunRow]:
    created, id = LAST, ""
    if before is not None:
        row = cursor.execute(SQL.run_created, (before,)).fetchone()
        created, id = (row[0], before) if row else (0, "")
    if until is not None:
        created, id = min((created, id), (until, ""))
    page = (since or 0, created, id, limit)
    if keys:
        others = json.dumps(keys[1:])
        return [_row(row) for row in cursor.execute(SQL.runs_by_keys, (keys[0], others, flow, status, *page))]
    if flow and status:
        rows = cursor.execute(SQL.runs_of_flow_with_status, (flow, status, *page))
    elif flow:
        rows = cursor.execute(SQL.runs_of_flow, (flow, *page))
    elif status:
        rows = cursor.execute(SQL.runs_with_status, (status, *page))
    else:
        rows = cursor.execute(SQL.runs, page)
    return [_row(row) for row in rows]


def with_first_event(cursor: apsw.Cursor, namespace: str, rows: list[RunRow]) -> list[RunStart]:
    """Return the rows with the body of each run's first event."""
    found: list[RunStart] = []
    for row in rows:
        first: Any = cursor.execute(SQL.first_event, (f"{namespace}:{row.kind}:{row.id}",)).fetchone()
        found.append((row, first[0] if first else None))
    return found


def stuck_runs(cursor: apsw.Cursor, limit: int) -> list[str]:
    return [row[0] for row in cursor.execute(SQL.stuck_runs, (limit,))]


def _row(row: tuple[object, ...]) -> RunRow:
    id, version, flow, status, closed, *rest = row
    return RunRow(id, version, flow, status, bool(closed), *rest)  # type: ignore[arg-type]


def has_open_children(cursor: apsw.Cursor, call: str) -> bool:
    return cursor.execute(SQL.open_child, (call,)).fetchone() is not None
