"""Track the children that parents wait for, inside a transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw

from ...ports.store import ChildRow, ChildState
from ...ports.unit import Cancelled, Completed, Dead, NewJob, OnFailure, Refused, Unit
from ..child_results import child_key, error_text
from .statements import CHILDREN as SQL

UNPROCESSED, PROCESSED, IGNORED, FAILED = range(4)
STATES = (ChildState.UNPROCESSED, ChildState.PROCESSED, ChildState.IGNORED, ChildState.FAILED)


def check(cursor: apsw.Cursor, unit: Unit) -> Refused | None:
    """Return why a unit cannot complete a parent or add a tree, None if it can."""
    claim = unit.claim
    completes = not unit.children_settled and claim is not None and isinstance(unit.outcome, Completed)
    if claim is not None and completes and cursor.execute(SQL.unsettled_child, (claim.job,)).fetchone() is not None:
        return Refused("children", claim.job)
    if unit.adds_tree and not job_exists(cursor, unit.jobs[0].id):
        for job in unit.jobs[1:]:
            if job_exists(cursor, job.id):
                return Refused("job", job.id)
    return None


def job_exists(cursor: apsw.Cursor, id: str) -> bool:
    return cursor.execute(SQL.job_exists, (id,)).fetchone() is not None


def add_child(cursor: apsw.Cursor, job: NewJob) -> None:
    """Let the parent of a new job wait for it."""
    parent = job.parent
    assert parent is not None
    if parent.replaces is not None:
        cursor.execute(SQL.replace_child, (job.id, job.queue, parent.id, parent.replaces))
    else:
        cursor.execute(SQL.insert_child, (parent.id, job.id, job.queue, parent.on_failure.value))


def settle(cursor: apsw.Cursor, unit: Unit, now: int, touched: set[str]) -> None:
    """Record the end of a child for its parent, and release the parent if it was the last one."""
    claim, parent = unit.claim, unit.parent
    assert claim is not None
    assert parent is not None
    execute, key = cursor.execute, (parent, claim.job)
    match unit.outcome:
        case Completed(result=result):
            value = b"null" if result is None else result
            if execute(SQL.settle_child, (PROCESSED, value, *key)).fetchall():
                _release_if_settled(cursor, parent, now, touched)
        case Cancelled(reason=reason):
            _settle_by_policy(cursor, key, reason.encode(), now, touched)
        case Dead(error=error):
            _settle_by_policy(cursor, key, error_text(error).encode(), now, touched)


def settle_cancelled(cursor: apsw.Cursor, child: str, error: bytes, now: int, touched: set[str]) -> None:
    """Record for its parent that a child was cancelled: it counts as a failure."""
    for (parent,) in cursor.execute(SQL.pending_parents, (child,)).fetchall():
        _settle_by_policy(cursor, (str(parent), child), error_text(error).encode(), now, touched)


def _settle_by_policy(cursor: apsw.Cursor, key: tuple[str, str], error: bytes, now: int, touched: set[str]) -> None:
    found = cursor.execute(SQL.on_failure, key).fetchone()
    if found is not None:
        _settle_failed(cursor, key, OnFailure(str(found[0])), error, now, touched)


def _settle_failed(
    cursor: apsw.Cursor, key: tuple[str, str], policy: OnFailure, error: bytes, now: int, touched: set[str]
) -> None:
    execute, parent = cursor.execute, key[0]
    match policy:
        case OnFailure.FAIL:
            execute(SQL.settle_child, (FAILED, error, *key)).fetchall()
            _touch(execute(SQL.release_parent_now, (parent,)), touched)
        case OnFailure.CONTINUE:
            execute(SQL.settle_child, (IGNORED, error, *key)).fetchall()
            _touch(execute(SQL.release_parent, (now, parent)), touched)
        case OnFailure.IGNORE:
            execute(SQL.settle_child, (IGNORED, error, *key)).fetchall()
            _release_if_settled(cursor, parent, now, touched)
        case OnFailure.REMOVE:
            execute(SQL.delete_child, key).fetchall()
            _release_if_settled(cursor, parent, now, touched)
        case OnFailure.WAIT:
            pass


def _release_if_settled(cursor: apsw.Cursor, parent: str, now: int, touched: set[str]) -> None:
    if cursor.execute(SQL.pending_child, (parent,)).fetchone() is None:
        _touch(cursor.execute(SQL.release_parent, (now, parent)), touched)


def _touch(rows: Iterable[tuple[Any, ...]], touched: set[str]) -> None:
    touched.update(f"queue:{row[0]}" for row in list(rows))


def release_parents_of_deleted(cursor: apsw.Cursor, ids: str, now: int) -> set[str]:
    """Let parents no longer wait for deleted jobs, given as JSON. Return the topics of parents that can continue."""
    touched: set[str] = set()
    for parent in {str(row[0]) for row in cursor.execute(SQL.delete_children_of_any_parent, (ids,)).fetchall()}:
        _release_if_settled(cursor, parent, now, touched)
    return touched


def delete_values(cursor: apsw.Cursor, scopes: str) -> None:
    """Delete the values of children with the last job that can read them. The scopes are JSON."""
    cursor.execute(SQL.delete_children, (scopes,))


def reset(cursor: apsw.Cursor, id: str) -> None:
    """Let the parent of a retried job wait for it again, and the job for its own unfinished children."""
    cursor.execute(SQL.reset_child, (id,))
    cursor.execute(SQL.suspend_parent, (id,))


def children(cursor: apsw.Cursor, id: str) -> list[ChildRow]:
    return sorted((_row(*row) for row in cursor.execute(SQL.children, (id,)).fetchall()), key=lambda row: row.key)


def _row(queue: Any, child: Any, state: Any, value: Any) -> ChildRow:
    key = child_key(queue, child)
    if state == PROCESSED:
        return ChildRow(key, queue, child, STATES[state], value=bytes(value))
    reason = bytes(value).decode(errors="replace") if state == IGNORED else None
    return ChildRow(key, queue, child, STATES[state], reason=reason)
