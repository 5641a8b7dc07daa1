"""What stays: finished jobs as their settings say, and the keys by which jobs stand for each other."""

from __future__ import annotations

import apsw

from ...ports.unit import Completed, Dedupe, KeepJobs, NewJob, Unit
from .append import SQL
from .queues import delete

_COMPLETED, _FAILED = 4, 5


class Keeper:
    """Works inside the transaction the cursor is in."""

    def __init__(self, cursor: apsw.Cursor, now: int, touched: set[str]) -> None:
        self._cursor = cursor
        self._now = now
        self._touched = touched
        self._crowded: dict[tuple[str, int], KeepJobs] = {}

    def ended(self, unit: Unit, keep: KeepJobs) -> None:
        """A job has ended that says what is to be kept. One that goes at once does so here: its id is free again."""
        assert unit.claim is not None
        if keep.count == 0:
            self._delete(SQL.drop_finished, (unit.claim.handle,))
        else:
            self._crowded[unit.claim.queue, _COMPLETED if isinstance(unit.outcome, Completed) else _FAILED] = keep

    def tidy(self) -> None:
        """Removes what is too old or too many; once for all jobs of a transaction, since counting takes time."""
        for (queue, state), keep in self._crowded.items():
            if keep.age_ms is not None:
                self._delete(SQL.drop_older, (queue, state, self._now - keep.age_ms))
            if keep.count is not None:
                self._delete(SQL.drop_surplus, (queue, state, keep.count))

    def _delete(self, sql: str, values: tuple[object, ...]) -> None:
        delete(self._cursor, sql, values, self._now, self._touched)

    def holder(self, job: NewJob, dedupe: Dedupe) -> str | None:
        """The job that holds the key, if this one is not to be added for its sake."""
        row = self._cursor.execute(SQL.standing, (job.queue, dedupe.key, job.id, self._now)).fetchone()
        return str(row[0]) if row else None

    def hold(self, job: NewJob, dedupe: Dedupe) -> None:
        until = self._now + dedupe.ttl_ms if dedupe.ttl_ms is not None else None
        self._cursor.execute(SQL.hold_key, (job.queue, dedupe.key, job.id, until))
