"""One call: units, then claims; and what its answer says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from ...core.ids import new_token
from ...ports.unit import (
    DELIVERIES,
    Claim,
    ClaimBatch,
    ClaimRequest,
    CommitReply,
    Committed,
    Conflict,
    Fenced,
    NewEvent,
    Receipt,
    Refused,
    Released,
    RetryAt,
    Suspended,
    Unit,
)
from .columns import JOB_UNITS, RARE, Columns, ask_values
from .connection import Connection
from .keeping import Keeping
from .plain import finish_values, handle
from .statements import Statements

APPLIED, REPEATED, FENCED, CONFLICT, REFUSED = range(5)


async def transact(
    connection: Connection,
    sql: Statements,
    now: int | None,
    units: Sequence[Unit],
    ask: ClaimRequest | None,
    touched: set[str],
) -> CommitReply:
    """Applies units in order and hands out the work asked for; `touched` collects the topics to signal afterwards."""
    columns, secret, keeping = Columns(units, sql.schema), new_token(), Keeping(units)
    values = [*columns.values(now), *ask_values(keeping.without_held(ask), secret)]
    if keeping:
        more = keeping.values()
        row = await connection.fetchrow(_call_keeping(sql.transact_keeping, len(values), len(more)), *values, *more)
    else:
        if columns.common:
            del values[RARE]
        row = await connection.fetchrow(_call(sql.transact, len(values), columns.common), *values)
    assert row is not None
    answer = _Answer(units, columns.events, row, touched, keeping.stand(row["stand"]) if keeping else {})
    receipts = answer.receipts()
    work = ClaimBatch()
    if ask is not None:
        times = [at for at in (row["next_due"], keeping.lifted()) if at is not None]
        work = ClaimBatch(_claims(row, secret, touched), min(times, default=None))
        # Whoever asks has just been given all there is of these: waking it for the same jobs would be for nothing.
        touched.difference_update(f"queue:{queue}" for queue in row["emptied"])
    if row["told"]:
        touched.add(f"queue:{DELIVERIES}")
    return CommitReply(receipts, work)


async def finish(
    connection: Connection,
    sql: Statements,
    now: int | None,
    units: Sequence[Unit],
    ask: ClaimRequest | None,
    touched: set[str],
) -> CommitReply:
    """The same for plain jobs that completed."""
    secret, ordered = new_token(), sorted(units, key=handle)
    values = finish_values(ordered, ask, now, secret)
    if values is None:
        return await transact(connection, sql, now, units, ask, touched)
    row = await connection.fetchrow(sql.finish, *values)
    assert row is not None
    receipts = _finished(ordered, row, touched)
    work = ClaimBatch(_claims(row, secret, touched), row["next_due"]) if ask is not None else ClaimBatch()
    if ordered != [*units]:
        by_job = dict(zip(map(handle, ordered), receipts, strict=True))
        receipts = [by_job[handle(unit)] for unit in units]
    return CommitReply(receipts, work)


@lru_cache(maxsize=8)
def _call(statement: str, count: int, common: bool = False) -> str:
    places = [f"${n}" for n in range(1, count + 1)]
    if common:  # what is empty anyway need not be sent, nor be read there
        places[RARE.start : RARE.start] = ["'{}'"] * (RARE.stop - RARE.start)
    return statement.format(places=", ".join(places))


@lru_cache(maxsize=8)
def _call_keeping(statement: str, count: int, more: int) -> str:
    places = [f"${n}" for n in range(1, count + 1)]
    beyond = [f"${n}" for n in range(count + 1, count + more + 1)]
    units = places[JOB_UNITS]
    places[JOB_UNITS] = "a.units"
    return statement.format(places=", ".join(places), units=units, keys=", ".join(beyond[:4]), more=", ".join(beyond))


def _places(row: Any) -> Iterator[tuple[int, int]]:
    """Time and sequence of each event that was appended."""
    bases, times = row["bases"] or (), row["times"] or ()
    for home, rank in zip(row["homes"] or (), row["ranks"] or (), strict=True):
        yield times[home - 1], bases[home - 1] + rank


class _Answer:
    """What the function answered, put back together."""

    def __init__(
        self,
        units: Sequence[Unit],
        events: Sequence[tuple[int, int | None, NewEvent]],
        row: Any,
        touched: set[str],
        stand: dict[int, dict[int, str]],
    ) -> None:
        self._units = units
        self._stand = stand
        self._row = row
        self._touched = touched
        self._verdicts: list[int] = row["verdicts"] or []
        self._added = set(row.get("added") or ())
        self._events: dict[int, list[tuple[int, int]]] = {}
        places = _places(row)
        for n, job, event in events:
            if self._verdicts[n - 1] == APPLIED and (job is None or job in self._added):
                place = next(places)
                touched.update((f"stream:{event.stream}", "events"))
                if job is None:
                    self._events.setdefault(n, []).append(place)
        touched.update(f"queue:{queue}" for queue in row.get("woken") or ())

    def receipts(self) -> list[Receipt]:
        found: list[Receipt] = []
        jobs = 0  # counted over all units, as the function does
        for n, (unit, verdict) in enumerate(zip(self._units, self._verdicts, strict=True), 1):
            first, jobs = jobs, jobs + len(unit.jobs)
            if verdict == APPLIED:
                self._touch(unit)
                added = [k in self._added for k in range(first + 1, jobs + 1)]
                found.append(Committed(self._events.get(n, []), added, self._stand.get(n, {})))
            else:
                found.append(self._refusal(n - 1, verdict))
        return found

    def _refusal(self, i: int, verdict: int) -> Receipt:
        row = self._row
        if verdict == REPEATED:
            return Committed(repeated=True)
        if verdict == FENCED:
            return Fenced()
        if verdict == CONFLICT:
            return Conflict(row["versions"][i], row["records"][i])
        return Refused(row["whys"][i], row["whats"][i])

    def _touch(self, unit: Unit) -> None:
        touched = self._touched
        if unit.run is not None and unit.run.closed:
            touched.add(f"run:{unit.run.id}")
        if unit.run is not None and unit.run.cancel_jobs:
            touched.add("cancelled")
        if unit.claim is not None and isinstance(unit.outcome, RetryAt | Released | Suspended):
            touched.add(f"queue:{unit.claim.queue}")
        touched.update(f"queue:{job.queue}" for job in unit.jobs)


def _finished(units: Sequence[Unit], row: Any, touched: set[str]) -> list[Receipt]:
    """The receipts of plain jobs that completed: almost always all of them did."""
    if any(row["verdicts"] or ()):
        events = [(n, None, event) for n, unit in enumerate(units, 1) for event in unit.events]
        return _Answer(units, events, row, touched, {}).receipts()
    _touch_streams({event.stream for unit in units for event in unit.events}, touched)
    places = _places(row)
    return [Committed(list(islice(places, len(unit.events)))) for unit in units]


def _claims(row: Any, secret: str, touched: set[str]) -> list[Claim]:
    if not row["claims"]:
        return []
    _touch_streams({stream for stream in row["c_stream"] if stream is not None}, touched)
    memos: dict[str, dict[str, bytes]] = {}
    kept = zip(row["memo_scopes"] or (), row["memo_names"] or (), row["memo_values"] or (), strict=True)
    for scope, name, value in kept:
        memos.setdefault(scope, {})[name] = value
    columns = zip(
        row["c_id"], row["c_queue"], row["c_name"], row["c_payload"], row["c_opts"], row["c_scope"],
        row["c_attempt"], row["c_failures"], row["c_crashes"], row["claims"], row["c_run"], row["c_version"],
        row["c_record"], strict=True,
    )  # fmt: skip
    now = row["now"]
    return [
        Claim(
            id, queue, name, payload, opts, scope, attempt, f"{secret}.{pk}", failures, crashes, pk, run, version,
            record, memos.get(scope, {}), now,
        )
        for id, queue, name, payload, opts, scope, attempt, failures, crashes, pk, run, version, record in columns
    ]  # fmt: skip


def _touch_streams(streams: set[str], touched: set[str]) -> None:
    if streams:
        touched.update(f"stream:{stream}" for stream in streams)
        touched.add("events")
