"""Retention: batches small enough that no commit waits long for them."""

from __future__ import annotations

import apsw

from ...ports.store import Retention
from ...ports.unit import DELIVERIES
from .events import SQL, trim
from .queues import delete as delete_jobs

ONCE_KEPT_MS = 7 * 86_400_000
UNITS_KEPT_MS = 86_400_000  # a reply lost longer ago than this is not asked for again
SMALL_ROWS = 10  # of these, so many times the batch take no longer


def sweep(
    cursor: apsw.Cursor, what: Retention, now: int, limit: int, namespace: str, touched: set[str]
) -> dict[str, int]:
    gone = {"runs": 0, "jobs": 0, "events": 0, "states": 0}
    for run in _doomed(cursor, what, now, limit):
        _forget(cursor, run, namespace, gone)
    for queue, _ in cursor.execute(SQL.queue_names).fetchall():
        if what.jobs_before is not None:
            gone["jobs"] += delete_jobs(cursor, SQL.old_jobs, (queue, what.jobs_before, limit), now, touched)
        kept = what.keep_jobs if queue != DELIVERIES else _least(what.keep_jobs, what.keep_deliveries)
        if kept is not None:
            gone["jobs"] += delete_jobs(cursor, SQL.surplus_jobs, (queue, kept, limit), now, touched)
        gone["events"] += _trim(cursor, f"{namespace}:queue:{queue}", what)
    gone["events"] += _trim(cursor, f"{namespace}:global", what)
    cursor.execute(SQL.expired_states, (now, limit))
    gone["states"] += cursor.connection.changes()
    cursor.execute(SQL.old_keys, (now, limit * SMALL_ROWS))
    cursor.execute(SQL.old_holds, (now,))
    cursor.execute(SQL.old_once, (now - ONCE_KEPT_MS, limit * SMALL_ROWS))
    cursor.execute(SQL.old_units, (now - UNITS_KEPT_MS, limit * SMALL_ROWS))
    return gone


def _trim(cursor: apsw.Cursor, stream: str, what: Retention) -> int:
    if what.events_before is None and what.keep_events is None:
        return 0
    return trim(cursor, stream, what.keep_events, what.events_before)


def _least(*counts: int | None) -> int | None:
    return min((count for count in counts if count is not None), default=None)


def _doomed(cursor: apsw.Cursor, what: Retention, now: int, limit: int) -> list[str]:
    runs: list[str] = []
    if what.runs_before is not None:
        runs = [row[0] for row in cursor.execute(SQL.old_runs, (what.runs_before, now, limit))]
    if what.keep_runs is not None and len(runs) < limit:
        rows = cursor.execute(SQL.surplus_runs, (what.keep_runs, now, limit))
        runs += [row[0] for row in rows if row[0] not in set(runs)][: limit - len(runs)]
    return runs


def _forget(cursor: apsw.Cursor, run: str, namespace: str, gone: dict[str, int]) -> None:
    stream, low, high = f"{namespace}:flow:{run}", f"{run}.", f"{run}/"
    cursor.execute(SQL.forget_events, (stream,))
    gone["events"] += cursor.connection.changes()
    cursor.execute(SQL.forget_stream, (stream,))
    cursor.execute(SQL.forget_run_memos, (low, high, run))
    cursor.execute(SQL.forget_run_jobs, (low, high, run))
    gone["jobs"] += cursor.connection.changes()
    for (trigger,) in cursor.execute(SQL.run_triggers, (run,)).fetchall():
        cursor.execute(SQL.forget_events, (f"{namespace}:trigger:{trigger}",))
        gone["events"] += cursor.connection.changes()
        cursor.execute(SQL.forget_stream, (f"{namespace}:trigger:{trigger}",))
    cursor.execute(SQL.forget_run_waits, (run,))
    cursor.execute(SQL.forget_run_states, (f"run/{run}/", f"run/{run}0"))
    gone["states"] += cursor.connection.changes()
    cursor.execute(SQL.forget_run, (run,))
    gone["runs"] += 1
