"""The fast path of the commonest commit: attempts of jobs without a run that completed, and the request for more jobs.

The SQL function `finish_jobs` takes it, every other commit goes through `commit_units`. Both leave the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ports.unit import ClaimRequest, Completed, Unit
from .encode_commit import encode_request

# A column is sent as one text and split by the server: asyncpg checks each element of an array in Python.
SEPARATOR = "\x1f"
NO_RESULT = b"-"  # not valid JSON


def is_fast(units: Sequence[Unit], request: ClaimRequest | None) -> bool:
    """Return whether `finish_jobs` can take all of it."""
    if request is not None and request.only is not None:
        return False
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
        and unit.order_key is None
        and all(event.kind is None for event in unit.events)
    )


def job_pk(unit: Unit) -> int:
    assert unit.claim is not None
    return unit.claim.handle


def encode_finished(
    units: Sequence[Unit], request: ClaimRequest | None, now: int | None, secret: str
) -> tuple[Any, ...] | None:
    """Return the arguments of `finish_jobs` for units sorted by job, or None if a value contains the separator."""
    claims = [unit.claim for unit in units if unit.claim is not None]
    results = [unit.outcome.result for unit in units if isinstance(unit.outcome, Completed)]
    events = [event for unit in units for event in unit.events]
    unit_ids = SEPARATOR.join([unit.id for unit in units])
    tokens = SEPARATOR.join([claim.token for claim in claims])
    streams = SEPARATOR.join([event.stream for event in events])
    result_texts = _join_json([NO_RESULT if result is None else result for result in results])
    bodies = _join_json([event.body for event in events])
    columns = ((unit_ids, units), (tokens, units), (result_texts, units), (streams, events), (bodies, events))
    if any(text.count(SEPARATOR) > max(len(rows) - 1, 0) for text, rows in columns):
        return None
    pks = ",".join([str(claim.handle) for claim in claims])
    attempts = ",".join([str(claim.attempt) for claim in claims])
    event_units = ",".join([str(n) for n, unit in enumerate(units, 1) for _ in unit.events])
    return (
        now, pks, unit_ids, attempts, tokens, result_texts, event_units, streams, bodies,
        encode_request(request, secret),
    )  # fmt: skip


def _join_json(column: Sequence[bytes]) -> str:
    return b"\x1f".join(column).decode()
