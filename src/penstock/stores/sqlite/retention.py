"""Delete jobs with all that belongs to them: their memos and their place among a parent's children."""

from __future__ import annotations

from typing import Any

import apsw

from ...ports.unit import Completed, KeepJobs, Unit
from . import children
from .statements import ADMIN, COMMIT

_COMPLETED, _FAILED = 4, 5


class JobRetention:
    """Applies the retention of finished jobs (`keep_completed`, `keep_failed`) inside a transaction."""

    def __init__(self, cursor: apsw.Cursor, now: int, touched: set[str]) -> None:
        self._cursor = cursor
        self._now = now
        self._touched = touched
        self._to_prune: dict[tuple[str, int], KeepJobs] = {}

    def note_finished(self, unit: Unit, keep: KeepJobs) -> None:
        """Delete a finished job that is not kept at all, so that its id is free. Otherwise prune its queue later."""
        assert unit.claim is not None
        if keep.count == 0:
            self._delete(COMMIT.delete_job, (unit.claim.handle,))
        else:
            self._to_prune[unit.claim.queue, _COMPLETED if isinstance(unit.outcome, Completed) else _FAILED] = keep

    def prune(self) -> None:
        """Delete jobs that are too old or too many: once per transaction, because counting takes time."""
        for (queue, state), keep in self._to_prune.items():
            if keep.age_ms is not None:
                self._delete(COMMIT.delete_older_jobs, (queue, state, self._now - keep.age_ms))
            if keep.count is not None:
                self._delete(COMMIT.delete_surplus_jobs, (queue, state, keep.count))

    def _delete(self, sql: str, values: tuple[object, ...]) -> None:
        delete_jobs(self._cursor, sql, values, self._now, self._touched)


def delete_jobs(cursor: apsw.Cursor, sql: str, values: tuple[object, ...], now: int, touched: set[str]) -> int:
    """Run a DELETE that returns the scope and the id of each job, delete what belongs to them, and count them."""
    rows = cursor.execute(sql, values).fetchall()
    delete_belongings(cursor, rows, now, touched)
    return len(rows)


def delete_belongings(cursor: apsw.Cursor, rows: list[tuple[Any, ...]], now: int, touched: set[str]) -> None:
    """Delete what belongs to deleted jobs, given their scopes and ids.

    Memos go with the last job that can read them: a redriven job reads those of the job it continues.
    """
    scopes = [str(scope) for scope, _ in rows]
    for scope in scopes:
        cursor.execute(ADMIN.delete_job_memos, (scope,))
    children.delete_values(cursor, scopes)
    touched |= children.release_parents_of_deleted(cursor, [str(id) for _, id in rows], now)
