"""Known bugs of child runs, put back on purpose; see `mutants`."""

from __future__ import annotations

import msgspec

from penstock.ports.unit import CHILD_ENDED, FOLLOW_PARENT, START, START_MANY, Unit

from .wait_mutants import RewritingStore, wrap_store


def _add_later(*names: str) -> None:
    """Add internal jobs in a second commit, after the one that causes them."""

    def change(unit: Unit) -> Unit:
        return msgspec.structs.replace(unit, jobs=[job for job in unit.jobs if job.name not in names])

    def later(unit: Unit) -> Unit | None:
        jobs = [job for job in unit.jobs if job.name in names]
        return Unit(f"{unit.id}-later", jobs=jobs) if jobs else None

    wrap_store(lambda store: RewritingStore(store, change, later))


def child_end_in_second_commit() -> None:
    _add_later(CHILD_ENDED)


def child_start_in_second_commit() -> None:
    _add_later(START, START_MANY)


def children_follow_in_second_commit() -> None:
    _add_later(FOLLOW_PARENT)


def memo_in_second_commit() -> None:
    """Record the event of a durable call in one commit and its memo in the next."""

    def is_call(unit: Unit) -> bool:
        return bool(unit.memos) and unit.outcome is None and not unit.waits

    def change(unit: Unit) -> Unit:
        return msgspec.structs.replace(unit, memos=[]) if is_call(unit) else unit

    def later(unit: Unit) -> Unit | None:
        return Unit(f"{unit.id}-later", memos=unit.memos) if is_call(unit) else None

    wrap_store(lambda store: RewritingStore(store, change, later))
