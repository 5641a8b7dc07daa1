"""Retention: batches small enough that no commit waits long for them."""

from __future__ import annotations

import apsw

from ...ports.store import Retention
from .events import SQL, trim
from .queues import delete as delete_jobs

ONCE_KEPT_MS = 7 * 86_400_000
UNITS_KEPT_MS = 86_400_000  # a reply lost longer ago than this is not asked for again
SMALL_ROWS = 10  # of these, so many times the batch take no longer


def sweep(cursor: apsw.Cursor, what: Retention, now: int, limit: int, namespace: str) -> dict[str, int]:
    gone = {"runs": 0, "jobs": 0, "events": 0, "states": 0}
    for run in _doomed(cursor, what, now, limit):
        _forget(cursor, run, namespace, gone)
    for queue, _ in cursor.execute(SQL.queue_names).fetchall():
        if what.jobs_before is not None:
            gone["jobs"] += delete_jobs(cursor, SQL.old_jobs, (queue, what.jobs_before, limit))
        if what.keep_jobs is not None:
            gone["jobs"] += delete_jobs(cursor, SQL.surplus_jobs, (queue, what.keep_jobs, limit))
        if what.events_before is not None:
            gone["events"] += trim(cursor, f"{namespace}:queue:{queue}", None, what.events_before)
    if what.events_before is not None:
        gone["events"] += trim(cursor, f"{namespace}:global", None, what.events_before)
    cursor.execute(SQL.expired_states, (now, limit))
    gone["states"] += cursor.connection.changes()
    cursor.execute(SQL.old_once, (now - ONCE_KEPT_MS, limit * SMALL_ROWS))
    cursor.execute(SQL.old_units, (now - UNITS_KEPT_MS, limit * SMALL_ROWS))
    return gone


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
    cursor.execute(SQL.forget_run_waits, (run,))
    cursor.execute(SQL.forget_run_states, (f"run/{run}/", f"run/{run}0"))
    gone["states"] += cursor.connection.changes()
    cursor.execute(SQL.forget_run, (run,))
    gone["runs"] += 1
