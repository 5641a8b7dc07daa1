"""Delete what retention no longer keeps, in batches small enough that no commit waits long for them."""

from __future__ import annotations

import apsw

from ...ports.store import Retention
from ...ports.unit import DELIVERIES
from .events import trim
from .retention import delete_jobs
from .statements import ADMIN as SQL

ONCE_KEYS_KEPT_MS = 7 * 86_400_000
UNITS_KEPT_MS = 86_400_000  # no caller repeats a commit whose reply was lost longer ago
SMALL_ROW_FACTOR = 10  # rows of small tables: ten times the batch take no longer


def sweep(
    cursor: apsw.Cursor, retention: Retention, now: int, limit: int, namespace: str, touched: set[str]
) -> dict[str, int]:
    """Delete up to `limit` rows of each kind. Return how many of each were deleted."""
    deleted = {"runs": 0, "jobs": 0, "events": 0, "states": 0}
    for run, kind in _runs_to_delete(cursor, retention, now, limit):
        _delete_run(cursor, run, kind, namespace, deleted)
    for queue, _ in cursor.execute(SQL.queue_names).fetchall():
        if retention.jobs_before is not None:
            values = (queue, retention.jobs_before, limit)
            deleted["jobs"] += delete_jobs(cursor, SQL.delete_old_jobs, values, now, touched)
        keep = retention.keep_jobs if queue != DELIVERIES else _min(retention.keep_jobs, retention.keep_deliveries)
        if keep is not None:
            deleted["jobs"] += delete_jobs(cursor, SQL.delete_surplus_jobs, (queue, keep, limit), now, touched)
        deleted["events"] += _trim(cursor, f"{namespace}:queue:{queue}", retention)
    deleted["events"] += _trim(cursor, f"{namespace}:global", retention)
    cursor.execute(SQL.delete_expired_state, (now, limit))
    deleted["states"] += cursor.connection.changes()
    cursor.execute(SQL.delete_expired_dedupe_keys, (now, limit * SMALL_ROW_FACTOR))
    cursor.execute(SQL.delete_expired_holds, (now,))
    cursor.execute(SQL.delete_old_once_keys, (now - ONCE_KEYS_KEPT_MS, limit * SMALL_ROW_FACTOR))
    cursor.execute(SQL.delete_old_units, (now - UNITS_KEPT_MS, limit * SMALL_ROW_FACTOR))
    return deleted


def _trim(cursor: apsw.Cursor, stream: str, retention: Retention) -> int:
    if retention.events_before is None and retention.keep_events is None:
        return 0
    return trim(cursor, stream, retention.keep_events, retention.events_before)


def _min(*counts: int | None) -> int | None:
    return min((count for count in counts if count is not None), default=None)


def _runs_to_delete(cursor: apsw.Cursor, retention: Retention, now: int, limit: int) -> list[tuple[str, str]]:
    """Return the ids and kinds of the runs to delete."""
    runs: list[tuple[str, str]] = []
    if retention.runs_before is not None:
        runs = list(cursor.execute(SQL.old_runs, (retention.runs_before, now, limit)))
    if retention.keep_runs is not None and len(runs) < limit:
        rows = cursor.execute(SQL.surplus_runs, (retention.keep_runs, now, limit))
        known = set(runs)
        runs += [row for row in rows if row not in known][: limit - len(runs)]
    return runs


def _delete_run(cursor: apsw.Cursor, run: str, kind: str, namespace: str, deleted: dict[str, int]) -> None:
    stream, low, high = f"{namespace}:{kind}:{run}", f"{run}.", f"{run}/"
    cursor.execute(SQL.delete_events, (stream,))
    deleted["events"] += cursor.connection.changes()
    cursor.execute(SQL.delete_stream, (stream,))
    cursor.execute(SQL.delete_run_memos, (low, high, run))
    cursor.execute(SQL.delete_run_jobs, (low, high, run))
    deleted["jobs"] += cursor.connection.changes()
    for (trigger,) in cursor.execute(SQL.run_triggers, (run,)).fetchall():
        cursor.execute(SQL.delete_events, (f"{namespace}:trigger:{trigger}",))
        deleted["events"] += cursor.connection.changes()
        cursor.execute(SQL.delete_stream, (f"{namespace}:trigger:{trigger}",))
    cursor.execute(SQL.delete_run_waits, (run,))
    cursor.execute(SQL.delete_run_state, (f"run/{run}/", f"run/{run}0"))
    deleted["states"] += cursor.connection.changes()
    cursor.execute(SQL.delete_run, (run,))
    deleted["runs"] += 1
