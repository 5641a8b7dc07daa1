"""The fast path of the commonest commit: attempts of jobs without a run that completed, and the request for more jobs.

The SQL function `finish_jobs` takes it. Every other commit goes through `commit_units`. Both leave the same rows behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ports.unit import ClaimRequest, Completed, Unit
from .encode_units import encode_request


def is_fast(units: Sequence[Unit], request: ClaimRequest | None) -> bool:
    """Return whether `finish_jobs` can take all of it."""
    if request is not None and any(d.rate is not None or d.max_active is not None for d in request.queues):
        return False
    return all(map(_is_fast_unit, units)) and len({job_pk(unit) for unit in units}) == len(units)


def _is_fast_unit(unit: Unit) -> bool:
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


def job_pk(unit: Unit) -> int:
    assert unit.claim is not None
    return unit.claim.handle


def encode_finished(
    units: Sequence[Unit], request: ClaimRequest | None, now: int | None, secret: str
) -> tuple[Any, ...]:
    """Return the arguments of `finish_jobs` for units sorted by their jobs."""
    finished = [
        (claim.handle, unit.id, claim.attempt, claim.token, outcome.result)
        for unit in units
        if (claim := unit.claim) is not None and isinstance(outcome := unit.outcome, Completed)
    ]
    events = [(n, None, event.stream, None, event.body) for n, unit in enumerate(units, 1) for event in unit.events]
    return now, finished, events, encode_request(request, secret)
