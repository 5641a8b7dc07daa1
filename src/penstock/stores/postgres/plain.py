"""The commonest call: attempts of plain jobs that completed, and the ask for more. The function `finish` takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ports.unit import Ask, Completed, Unit


def plain(units: Sequence[Unit], ask: Ask | None) -> bool:
    """Whether `finish` can take all of it."""
    if ask is not None and any(want.rate is not None or want.max_active is not None for want in ask.wants):
        return False
    return all(map(_plain, units)) and len({handle(unit) for unit in units}) == len(units)


def _plain(unit: Unit) -> bool:
    outcome = unit.outcome
    return (
        isinstance(outcome, Completed)
        and outcome.keep is None
        and unit.claim is not None
        and unit.claim.run is None
        and unit.run is None
        and unit.settled
        and not (unit.jobs or unit.memos or unit.waits or unit.state or unit.wakes or unit.takes)
        and unit.progress is None
        and unit.schedule is None
        and unit.once is None
        and unit.parent is None
        and all(event.kind is None for event in unit.events)
    )


def handle(unit: Unit) -> int:
    assert unit.claim is not None
    return unit.claim.handle


def _end(unit: Unit) -> tuple[Any, ...]:
    claim, outcome = unit.claim, unit.outcome
    assert claim is not None
    assert isinstance(outcome, Completed)
    return claim.handle, unit.id, claim.attempt, claim.token, outcome.result


def finish_values(units: Sequence[Unit], ask: Ask | None, now: int | None, secret: str) -> list[Any]:
    """What `finish` takes, of units in the order of their jobs."""
    said = [(n, event.stream, event.body) for n, unit in enumerate(units, 1) for event in unit.events]
    found = [now, *_columns([_end(unit) for unit in units], 5), *_columns(said, 3)]
    if ask is None:
        return [*found, None, None, None, None, [], []]
    wants = ask.wants
    most = ask.limit if ask.limit is not None else sum(max(want.limit, 1) for want in wants)
    queues, limits = [want.queue for want in wants], [want.limit for want in wants]
    return [*found, ask.worker, ask.lease_ms, secret, most, queues, limits]


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[Any]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * width
