"""The commonest call: attempts of plain jobs that completed, and the ask for more. The function `finish` takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ports.unit import Ask, Completed, Unit

# A column is sent as one text, since the driver asks of each element of an array whether it is an array, in Python. No
# name of ours has this character, and JSON has it escaped.
SEPARATOR = "\x1f"
NOTHING = b"-"  # which is no JSON


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


def finish_values(units: Sequence[Unit], ask: Ask | None, now: int | None, secret: str) -> list[Any] | None:
    """What `finish` takes, of units in the order of their jobs; None if it cannot be written so."""
    said = [(n, event.stream, event.body) for n, unit in enumerate(units, 1) for event in unit.events]
    pks, ids, attempts, tokens, results = _columns([_end(unit) for unit in units], 5)
    places, streams, bodies = _columns(said, 3)
    texts = [_joined(ids), _joined(tokens), _joined_json(results), _joined(streams), _joined_json(bodies)]
    if any(text.count(SEPARATOR) > max(count - 1, 0) for text, count in zip(texts, _counts(units, said), strict=True)):
        return None
    found = [now, _numbers(pks), texts[0], _numbers(attempts), texts[1], texts[2], _numbers(places), texts[3], texts[4]]
    if ask is None:
        return [*found, None, None, None, None, [], []]
    wants = ask.wants
    most = ask.limit if ask.limit is not None else sum(max(want.limit, 1) for want in wants)
    queues, limits = [want.queue for want in wants], [want.limit for want in wants]
    return [*found, ask.worker, ask.lease_ms, secret, most, queues, limits]


def _counts(units: Sequence[Unit], said: Sequence[Any]) -> tuple[int, ...]:
    return (len(units),) * 3 + (len(said),) * 2


def _numbers(column: Sequence[int]) -> str:
    return ",".join(map(str, column))


def _joined(column: Sequence[str]) -> str:
    return SEPARATOR.join(column)


def _joined_json(column: Sequence[bytes | None]) -> str:
    return b"\x1f".join([NOTHING if one is None else one for one in column]).decode()


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[Any]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * width
