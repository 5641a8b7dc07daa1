"""Deduplication keys: which job holds a key, and until when."""

from __future__ import annotations

import json
from collections.abc import Sequence

import apsw

from ...ports.unit import Dedupe, NewJob
from .statements import ADMIN, COMMIT


def find_holder(cursor: apsw.Cursor, job: NewJob, dedupe: Dedupe, now: int) -> str | None:
    """Return the job that holds the key, None if the new job may be added."""
    row = cursor.execute(COMMIT.dedupe_holder, (job.queue, dedupe.key, job.id, now)).fetchone()
    return str(row[0]) if row else None


def hold_key(cursor: apsw.Cursor, job: NewJob, dedupe: Dedupe, now: int) -> None:
    """Let a job hold the key, until its time to live is over or the job has ended."""
    until = now + dedupe.ttl_ms if dedupe.ttl_ms is not None else None
    cursor.execute(COMMIT.set_dedupe_key, (job.queue, dedupe.key, job.id, until))


def release_keys(cursor: apsw.Cursor, ids: Sequence[str]) -> None:
    """Release the keys of jobs that a caller has removed."""
    cursor.execute(ADMIN.delete_dedupe_keys, (json.dumps(ids),))


def release_keys_without_ttl(cursor: apsw.Cursor, ids: Sequence[str]) -> None:
    """Release the keys of jobs that have ended, except keys with a time to live."""
    cursor.execute(ADMIN.delete_dedupe_keys_without_ttl, (json.dumps(ids),))
