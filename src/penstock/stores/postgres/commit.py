"""The commit: one call that applies units and claims jobs, and the reading of its reply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from ...core.ids import new_token
from ...ports.unit import (
    DELIVERIES,
    FLOW,
    Claim,
    ClaimBatch,
    ClaimRequest,
    CommitReply,
    Committed,
    Conflict,
    Fenced,
    Receipt,
    Refused,
    Released,
    RetryAt,
    Suspended,
    Unit,
)
from .connection import Connection
from .encode_commit import EncodedUnits, encode_request
from .fast_finish import encode_finished, job_pk
from .statements import Statements

APPLIED, REPEATED, FENCED, CONFLICT, REFUSED = range(5)


async def commit_units(
    connection: Connection,
    sql: Statements,
    now: int | None,
    units: Sequence[Unit],
    request: ClaimRequest | None,
    touched: set[str],
) -> CommitReply:
    """Apply units in order and claim the jobs asked for. `touched` collects the topics to signal afterwards."""
    encoded, secret = EncodedUnits(units, sql.schema), new_token()
    row = await connection.fetchrow(sql.commit_units, *encoded.arguments(now, encode_request(request, secret)))
    assert row is not None
    receipts = _read_receipts(units, encoded, row, touched)
    claimed = ClaimBatch()
    if request is not None:
        claimed = ClaimBatch(_read_claims(row, secret, touched), row["next_due"], row["drained"])
        # The worker that asked has just received every due job of these queues: it need not be woken for them.
        touched.difference_update(f"queue:{queue}" for queue in row["drained"])
    if row["deliveries"]:
        touched.add(f"queue:{DELIVERIES}")
    return CommitReply(receipts, claimed, row["now"])


async def finish_jobs(
    connection: Connection,
    sql: Statements,
    now: int | None,
    units: Sequence[Unit],
    request: ClaimRequest | None,
    touched: set[str],
) -> CommitReply:
    """Do the same for units that the fast path can take: see `fast_finish`."""
    secret, ordered = new_token(), sorted(units, key=job_pk)
    arguments = encode_finished(ordered, request, now, secret)
    if arguments is None:
        return await commit_units(connection, sql, now, units, request, touched)
    row = await connection.fetchrow(sql.finish_jobs, *arguments)
    assert row is not None
    receipts = _read_finished(ordered, row, touched)
    claimed = ClaimBatch()
    if request is not None:
        claimed = ClaimBatch(_read_claims(row, secret, touched), row["next_due"], row["drained"] or ())
    if ordered != [*units]:
        by_job = dict(zip(map(job_pk, ordered), receipts, strict=True))
        receipts = [by_job[job_pk(unit)] for unit in units]
    return CommitReply(receipts, claimed, row["now"])


def _read_receipts(units: Sequence[Unit], encoded: EncodedUnits, row: Any, touched: set[str]) -> list[Receipt]:
    verdicts: list[int] = row["verdicts"] or []
    added = set(row["added"])
    events: dict[int, list[tuple[int, int]]] = {}
    positions = _event_positions(row)
    for n, job, event in encoded.events:
        if verdicts[n - 1] == APPLIED and (job is None or job in added):
            position = next(positions)
            touched.update((f"stream:{event.stream}", "events"))
            if job is None:
                events.setdefault(n, []).append(position)
    touched.update(f"queue:{queue}" for queue in row["woken"])
    holders: dict[int, dict[int, str]] = {}
    for (n, index), holder in zip(encoded.dedupes, row["key_holders"] or (), strict=True):
        if holder is not None:
            holders.setdefault(n, {})[index] = holder
    refusals = {refusal["unit"]: refusal for refusal in row["refusals"] or ()}
    receipts: list[Receipt] = []
    jobs = 0  # counted over all units
    for n, (unit, verdict) in enumerate(zip(units, verdicts, strict=True), 1):
        first, jobs = jobs, jobs + len(unit.jobs)
        if verdict == APPLIED:
            _touch(unit, touched)
            is_added = [k in added for k in range(first + 1, jobs + 1)]
            receipts.append(Committed(events.get(n, []), is_added, holders.get(n, {})))
        else:
            receipts.append(_read_refusal(verdict, refusals.get(n)))
    return receipts


def _read_refusal(verdict: int, refusal: Any) -> Receipt:
    if verdict == REPEATED:
        return Committed(repeated=True)
    if verdict == FENCED:
        return Fenced()
    if verdict == CONFLICT:
        return Conflict(refusal["version"], refusal["record"])
    return Refused(refusal["why"], refusal["key"])


def _touch(unit: Unit, touched: set[str]) -> None:
    if unit.run is not None and unit.run.closed:
        touched.add(f"run:{unit.run.id}")
    if unit.cancels or (unit.run is not None and unit.run.cancel_jobs):
        touched.add("cancelled")
    if unit.claim is not None and isinstance(unit.outcome, RetryAt | Released | Suspended):
        touched.add(f"queue:{unit.claim.queue}")
    touched.update(f"queue:{job.queue}" for job in unit.jobs)


def _read_finished(units: Sequence[Unit], row: Any, touched: set[str]) -> list[Receipt]:
    verdicts: list[int] = row["verdicts"] or []
    positions = _event_positions(row)
    if any(verdicts):
        receipts: list[Receipt] = []
        for unit, verdict in zip(units, verdicts, strict=True):
            if verdict == APPLIED:
                _touch_streams({event.stream for event in unit.events}, touched)
                receipts.append(Committed(list(islice(positions, len(unit.events)))))
            else:
                receipts.append(_read_refusal(verdict, None))
        return receipts
    _touch_streams({event.stream for unit in units for event in unit.events}, touched)
    return [Committed(list(islice(positions, len(unit.events)))) for unit in units]


def _event_positions(row: Any) -> Iterator[tuple[int, int]]:
    """Return time and sequence number of each event that was appended."""
    return zip(row["event_times"] or (), row["event_seqs"] or (), strict=True)


def _read_claims(row: Any, secret: str, touched: set[str]) -> list[Claim]:
    if not row["claims"]:
        return []
    memos: dict[str, dict[str, bytes]] = {}
    for _, scope, name, value in row["claimed_memos"] or ():
        memos.setdefault(scope, {})[name] = value
    now, streams, claims = row["now"], set(), []
    for job in row["claims"]:
        id, queue, name, payload, opts, scope, attempt, failures, crashes, pk, run, version, record, stream, kind = job
        streams.add(stream)
        claims.append(
            Claim(
                id, queue, name, payload, opts, scope, attempt, f"{secret}.{pk}", failures, crashes, pk, run, version,
                record, memos.get(scope, {}), now, kind or FLOW,
            )
        )  # fmt: skip
    streams.discard(None)
    _touch_streams(streams, touched)
    return claims


def _touch_streams(streams: set[str], touched: set[str]) -> None:
    if streams:
        touched.update(f"stream:{stream}" for stream in streams)
        touched.add("events")
