"""Retention: delete jobs with all that belongs to them: their memos and their place among a parent's children."""

from __future__ import annotations

import json
from typing import Any

import apsw

from ...ports.unit import KeepJobs
from . import children, dedupe
from .statements import ADMIN, COMMIT

KeepLimits = dict[tuple[str, int], KeepJobs]
"""How many finished jobs are kept, by queue and state."""


def prune(cursor: apsw.Cursor, limits: KeepLimits, now: int, touched: set[str]) -> None:
    """Delete jobs that are too old or too many: once per transaction, because counting takes time."""
    for (queue, state), keep in limits.items():
        if keep.age_ms is not None:
            delete_jobs(cursor, COMMIT.delete_older_jobs, (queue, state, now - keep.age_ms), now, touched)
        if keep.count is not None:
            delete_jobs(cursor, COMMIT.delete_surplus_jobs, (queue, state, keep.count), now, touched)


def delete_jobs(cursor: apsw.Cursor, sql: str, values: tuple[object, ...], now: int, touched: set[str]) -> int:
    """Run a DELETE that returns the scope and the id of each job, delete what belongs to them, and count them."""
    rows = cursor.execute(sql, values).fetchall()
    delete_belongings(cursor, rows, now, touched)
    return len(rows)


def delete_belongings(cursor: apsw.Cursor, rows: list[tuple[Any, ...]], now: int, touched: set[str]) -> None:
    """Delete what belongs to deleted jobs, given their scopes and ids.

    Memos go with the last job that can read them: a redriven job reads those of the job it continues. A deduplication
    key with a time to live outlives its job.
    """
    if not rows:
        return
    scopes, ids = json.dumps([row[0] for row in rows]), [str(row[1]) for row in rows]
    cursor.execute(ADMIN.delete_job_memos, (scopes,))
    children.delete_values(cursor, scopes)
    dedupe.release_keys_without_ttl(cursor, ids)
    touched |= children.release_parents_of_deleted(cursor, json.dumps(ids), now)
