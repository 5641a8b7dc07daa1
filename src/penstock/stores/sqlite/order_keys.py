"""Ordered keys: of the open jobs of a queue and a key, the first one runs and the others are held."""

from __future__ import annotations

import apsw

from .statements import COMMIT as SQL


def has_open_job(cursor: apsw.Cursor, queue: str, key: str) -> bool:
    """Return whether a new job of the key must wait for another one."""
    return cursor.execute(SQL.open_job_of_order_key, (queue, key)).fetchone() is not None


def release_head(cursor: apsw.Cursor, queue: str, key: str, now: int, touched: set[str]) -> None:
    """Release the first open job of a key if it is held, because the job before it has ended or is gone."""
    cursor.execute(SQL.release_order_head, (queue, key, now))
    if cursor.connection.changes():
        touched.add(f"queue:{queue}")


def move_to_end(cursor: apsw.Cursor, id: str, queue: str, key: str, now: int, touched: set[str]) -> None:
    """Put a job that is retried behind the open jobs of its key."""
    cursor.execute(SQL.move_to_end_of_order, (id,))
    release_head(cursor, queue, key, now, touched)
