"""Read and search runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import apsw

from ...ports.store import RunRow
from ..run_search import RunStart
from .events import LAST
from .statements import ADMIN as SQL

ID, CREATED = 0, 5  # columns of a run


def run(cursor: apsw.Cursor, id: str) -> RunRow | None:
    row = cursor.execute(SQL.run, (id,)).fetchone()
    return _row(row) if row else None


def runs(
    cursor: apsw.Cursor,
    flow: str | None,
    statuses: Sequence[str],
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
    rows: Iterable[tuple[Any, ...]]
    if keys:
        rows = cursor.execute(SQL.runs_by_keys, (keys[0], json.dumps(keys[1:]), flow, json.dumps(statuses), *page))
    elif flow:
        rows = cursor.execute(SQL.runs_of_flow, (flow, json.dumps(statuses), *page))
    elif statuses:
        found = [row for status in statuses for row in cursor.execute(SQL.runs_with_status, (status, *page))]
        rows = sorted(found, key=itemgetter(CREATED, ID), reverse=True)[:limit]
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
