"""Delete what retention no longer keeps, in batches small enough that no commit waits long for them."""

from __future__ import annotations

from typing import NamedTuple

import apsw

from ...ports.monitoring import RATES_KEPT_MS
from ...ports.store import Retention
from ...ports.unit import DELIVERIES
from ..batches import MAX_LEASE_MS, SweepBatch
from .events import trim
from .retention import delete_jobs
from .statements import ADMIN as SQL

ONCE_KEYS_KEPT_MS = 7 * 86_400_000
UNITS_KEPT_MS = 86_400_000  # no caller repeats a commit whose reply was lost longer ago
LAST_ID, LAST_PK = "\U0010ffff", 2**62


class LastToDelete(NamedTuple):
    """The newest run, and the newest job of each queue, that retention no longer keeps."""

    run: tuple[int, str]  # when it last moved, and its id
    jobs: dict[str, tuple[int, int]]  # when it finished, and its key


def last_to_delete(cursor: apsw.Cursor, what: Retention) -> LastToDelete:
    """Apply ages and counts. To skip the kept rows takes time, so it is not done inside a write transaction."""
    run = ((what.runs_before or 0) - 1, LAST_ID)
    if what.keep_runs is not None:
        surplus = cursor.execute(SQL.last_surplus_run, (what.keep_runs,)).fetchone()
        run = max(run, surplus or run)
    jobs: dict[str, tuple[int, int]] = {}
    for queue, _ in cursor.execute(SQL.queue_names).fetchall():
        last = ((what.jobs_before or 0) - 1, LAST_PK)
        counts = (what.keep_jobs, what.keep_deliveries if queue == DELIVERIES else None)
        keep = min((count for count in counts if count is not None), default=None)
        if keep is not None:
            surplus = cursor.execute(SQL.last_surplus_job, (queue, keep)).fetchone()
            last = max(last, surplus if surplus and surplus[0] is not None else last)
        jobs[str(queue)] = last
    return LastToDelete(run, jobs)


def sweep(
    cursor: apsw.Cursor,
    what: Retention,
    last: LastToDelete,
    batch: SweepBatch,
    now: int,
    namespace: str,
    touched: set[str],
) -> dict[str, int]:
    """Delete one batch, oldest first. Return how many of each kind were deleted."""
    for run, kind in cursor.execute(SQL.old_runs, (*last.run, now, batch.room("runs"))).fetchall():
        if not _delete_run(cursor, str(run), str(kind), namespace, batch):
            break
    for queue, finished in last.jobs.items():
        # Rows with impossible times would stay for ever.
        cursor.execute(SQL.expire_damaged_leases, (queue, now, now + MAX_LEASE_MS))
        cursor.execute(SQL.date_finished_jobs, (queue,))
        values = (queue, *finished, batch.room("jobs"))
        batch.add("jobs", delete_jobs(cursor, SQL.delete_old_jobs, values, now, touched))
    for stream in (*(f"{namespace}:queue:{queue}" for queue in last.jobs), f"{namespace}:global"):
        batch.add("events", trim(cursor, stream, what.keep_events, what.events_before, batch.room("events")))
    _delete(cursor, SQL.delete_expired_state, (now,), batch, "states")
    for sql, until in (
        (SQL.delete_expired_dedupe_keys, now),
        (SQL.delete_expired_rates, now),
        (SQL.delete_expired_holds, now),
        (SQL.delete_expired_workers, now),
        (SQL.delete_old_once_keys, now - ONCE_KEYS_KEPT_MS),
        (SQL.delete_old_units, now - UNITS_KEPT_MS),
        (SQL.delete_old_counts, now - RATES_KEPT_MS),
    ):
        _delete(cursor, sql, (until,), batch, "others")
    return batch.removed


def _delete(cursor: apsw.Cursor, sql: str, values: tuple[object, ...], batch: SweepBatch, kind: str) -> bool:
    """Delete as many rows as the batch has room for. Return whether that may have been all of them."""
    room = batch.room(kind)
    cursor.execute(sql, (*values, room))
    count = cursor.connection.changes()
    batch.add(kind, count)
    return count < room


def _delete_run(cursor: apsw.Cursor, run: str, kind: str, namespace: str, batch: SweepBatch) -> bool:
    """Delete a run with everything it owns. Return False if the batch is full; the next one continues."""
    if not (_delete_stream(cursor, f"{namespace}:{kind}:{run}", batch) and _delete_jobs_of_run(cursor, run, batch)):
        return False
    for (trigger,) in cursor.execute(SQL.run_triggers, (run,)).fetchall():
        if not _delete_stream(cursor, f"{namespace}:trigger:{trigger}", batch):
            return False
    if not _delete(cursor, SQL.delete_run_state, (f"run/{run}/", f"run/{run}0"), batch, "states"):
        return False
    cursor.execute(SQL.delete_run_waits, (run,))
    cursor.execute(SQL.delete_run_keys, (run,))
    cursor.execute(SQL.delete_run, (run,))
    batch.add("runs", 1)
    return True


def _delete_stream(cursor: apsw.Cursor, stream: str, batch: SweepBatch) -> bool:
    if not _delete(cursor, SQL.delete_events, (stream,), batch, "events"):
        return False
    cursor.execute(SQL.delete_stream, (stream,))
    return True


def _delete_jobs_of_run(cursor: apsw.Cursor, run: str, batch: SweepBatch) -> bool:
    room = batch.room("jobs")
    rows = cursor.execute(SQL.run_jobs, (f"{run}.", f"{run}/", run, room)).fetchall()
    cursor.executemany(SQL.delete_memos, [(scope,) for _, scope in rows])
    cursor.executemany(SQL.delete_job, [(pk,) for pk, _ in rows])
    batch.add("jobs", len(rows))
    return len(rows) < room
