"""Parents and children, inside the transaction the cursor is in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw

from ...ports.store import ChildRow, ChildState
from ...ports.unit import Cancelled, Completed, Dead, NewJob, OnFailure, Refused, Unit
from ..child_keys import child_key, reason
from ..sql_files import Queries

SQL = Queries(__package__, "kin.sql")
UNPROCESSED, PROCESSED, IGNORED, FAILED = range(4)
STATES = (ChildState.UNPROCESSED, ChildState.PROCESSED, ChildState.IGNORED, ChildState.FAILED)


def check(cursor: apsw.Cursor, unit: Unit) -> Refused | None:
    """What is in the way of a unit that completes a parent, or adds a tree."""
    claim = unit.claim
    completes = not unit.children_settled and claim is not None and isinstance(unit.outcome, Completed)
    if claim is not None and completes and cursor.execute(SQL.unsettled, (claim.job,)).fetchone() is not None:
        return Refused("children", claim.job)
    if is_tree(unit) and not _exists(cursor, unit.jobs[0].id):
        for job in unit.jobs[1:]:
            if _exists(cursor, job.id):
                return Refused("job", job.id)
    return None


def is_tree(unit: Unit) -> bool:
    return bool(unit.jobs) and unit.jobs[0].waits_for_children


def known(cursor: apsw.Cursor, unit: Unit) -> bool:
    """Whether a tree is there already: then nothing of it is added."""
    return is_tree(unit) and _exists(cursor, unit.jobs[0].id)


def _exists(cursor: apsw.Cursor, id: str) -> bool:
    return cursor.execute(SQL.exists, (id,)).fetchone() is not None


def adopt(cursor: apsw.Cursor, job: NewJob) -> None:
    """A job that was added is waited for by its parent."""
    parent = job.parent
    assert parent is not None
    if parent.replaces is not None:
        cursor.execute(SQL.replace, (job.id, job.queue, parent.id, parent.replaces))
    else:
        cursor.execute(SQL.adopt, (parent.id, job.id, job.queue, parent.on_failure.value))


def tell(cursor: apsw.Cursor, unit: Unit, now: int, touched: set[str]) -> None:
    """A job has ended: its parent has the result, or goes on without one."""
    claim, parent = unit.claim, unit.parent
    assert claim is not None
    assert parent is not None
    execute, place = cursor.execute, (parent, claim.job)
    match unit.outcome:
        case Completed(result=result):
            value = b"null" if result is None else result
            if execute(SQL.settle, (PROCESSED, value, *place)).fetchall():
                _release_if_none_pends(cursor, parent, now, touched)
        case Cancelled():
            if execute(SQL.drop, place).fetchall():
                _release_if_none_pends(cursor, parent, now, touched)
        case Dead(error=error):
            found = execute(SQL.on_failure, place).fetchone()
            if found is not None:
                _failed(cursor, place, OnFailure(str(found[0])), reason(error), now, touched)


def _failed(cursor: apsw.Cursor, place: tuple[str, str], how: OnFailure, why: str, now: int, touched: set[str]) -> None:
    execute, parent = cursor.execute, place[0]
    match how:
        case OnFailure.FAIL:
            execute(SQL.settle, (FAILED, why, *place)).fetchall()
            _touch(execute(SQL.hurry, (parent,)), touched)
        case OnFailure.CONTINUE:
            execute(SQL.settle, (IGNORED, why, *place)).fetchall()
            _touch(execute(SQL.release, (now, parent)), touched)
        case OnFailure.IGNORE:
            execute(SQL.settle, (IGNORED, why, *place)).fetchall()
            _release_if_none_pends(cursor, parent, now, touched)
        case OnFailure.REMOVE:
            execute(SQL.drop, place).fetchall()
            _release_if_none_pends(cursor, parent, now, touched)
        case OnFailure.WAIT:
            pass


def _release_if_none_pends(cursor: apsw.Cursor, parent: str, now: int, touched: set[str]) -> None:
    if cursor.execute(SQL.pending, (parent,)).fetchone() is None:
        _touch(cursor.execute(SQL.release, (now, parent)), touched)


def _touch(rows: Iterable[tuple[Any, ...]], touched: set[str]) -> None:
    touched.update(f"queue:{row[0]}" for row in list(rows))


def gone(cursor: apsw.Cursor, ids: Iterable[str], now: int) -> set[str]:
    """Jobs were removed: nobody waits for them any more. Gives the topics of parents that can go on."""
    touched: set[str] = set()
    for id in ids:
        for (parent,) in cursor.execute(SQL.drop_gone, (id,)).fetchall():
            _release_if_none_pends(cursor, str(parent), now, touched)
    return touched


def forget(cursor: apsw.Cursor, scopes: Iterable[str]) -> None:
    """What children gave goes with the last job that could read it."""
    for scope in scopes:
        cursor.execute(SQL.forget, (scope,))


def retried(cursor: apsw.Cursor, id: str) -> None:
    """A failed job was put back: its parent waits for it again, and it for its own children that are not done."""
    cursor.execute(SQL.wait_again, (id,))
    cursor.execute(SQL.wait_for_children, (id,))


def children(cursor: apsw.Cursor, id: str) -> list[ChildRow]:
    return sorted((_row(*row) for row in cursor.execute(SQL.children, (id,)).fetchall()), key=lambda row: row.key)


def _row(queue: Any, child: Any, state: Any, value: Any) -> ChildRow:
    key = child_key(queue, child)
    if state == PROCESSED:
        return ChildRow(key, queue, child, STATES[state], value=bytes(value))
    return ChildRow(key, queue, child, STATES[state], reason=value if state == IGNORED else None)
