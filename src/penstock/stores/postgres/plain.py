"""The commonest call: attempts of plain jobs that completed, and the ask for more. The function `finish` takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ports.unit import ClaimRequest, Completed, Unit

# A column is sent as one text, since the driver asks of each element of an array whether it is an array, in Python. No
# name of ours has this character, and JSON has it escaped.
SEPARATOR = "\x1f"
NOTHING = b"-"  # which is no JSON


def plain(units: Sequence[Unit], ask: ClaimRequest | None) -> bool:
    """Whether `finish` can take all of it."""
    if ask is not None and any(want.rate is not None or want.max_active is not None for want in ask.queues):
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
        and unit.children_settled
        and not (unit.jobs or unit.memos or unit.waits or unit.state or unit.wakes or unit.removes)
        and unit.progress is None
        and unit.schedule is None
        and unit.once_key is None
        and unit.parent is None
        and all(event.kind is None for event in unit.events)
    )


def handle(unit: Unit) -> int:
    assert unit.claim is not None
    return unit.claim.handle


def finish_values(units: Sequence[Unit], ask: ClaimRequest | None, now: int | None, secret: str) -> list[Any] | None:
    """What `finish` takes, of units in the order of their jobs; None if it cannot be written so."""
    claims = [unit.claim for unit in units if unit.claim is not None]
    results = [unit.outcome.result for unit in units if isinstance(unit.outcome, Completed)]
    said = [event for unit in units for event in unit.events]
    texts = [
        SEPARATOR.join([unit.id for unit in units]),
        SEPARATOR.join([claim.token for claim in claims]),
        _joined_json([NOTHING if result is None else result for result in results]),
        SEPARATOR.join([event.stream for event in said]),
        _joined_json([event.body for event in said]),
    ]
    if any(text.count(SEPARATOR) > max(count - 1, 0) for text, count in zip(texts, _counts(units, said), strict=True)):
        return None
    pks, attempts = _numbers([claim.handle for claim in claims]), _numbers([claim.attempt for claim in claims])
    places = _numbers([n for n, unit in enumerate(units, 1) for _ in unit.events])
    found = [now, pks, texts[0], attempts, texts[1], texts[2], places, texts[3], texts[4]]
    if ask is None:
        return [*found, None, None, None, None, [], []]
    wants = ask.queues
    most = ask.limit if ask.limit is not None else sum(max(want.limit, 1) for want in wants)
    queues, limits = [want.queue for want in wants], [want.limit for want in wants]
    return [*found, ask.worker, ask.lease_ms, secret, most, queues, limits]


def _counts(units: Sequence[Unit], said: Sequence[Any]) -> tuple[int, ...]:
    return (len(units),) * 3 + (len(said),) * 2


def _numbers(column: Sequence[int]) -> str:
    return ",".join(map(str, column))


def _joined_json(column: Sequence[bytes]) -> str:
    return b"\x1f".join(column).decode()
