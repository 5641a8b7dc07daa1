"""Units as the columns that the function `transact` takes: an array for each, in the order of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from ...ports.unit import (
    Cancelled,
    Claim,
    ClaimRequest,
    Completed,
    Dead,
    NewEvent,
    NewJob,
    NewWait,
    Outcome,
    Released,
    RetryAt,
    RunWrite,
    Suspended,
    Unit,
    needs_receipt,
)
from .migrate import lock_key
from .statements import CANCELLED, COMPLETED, DELAYED, FAILED, SUSPENDED, WAITING

_NO_RUN = (None,) * 6
_NO_END = (None,) * 5
JOB_UNITS = 31  # where j_unit is among all values
_SECONDARY = {"u": 25, "j": 13, "e": 5, "m": 4, "t": 2, "k": 2, "w": 13, "s": 5}
_SELDOM = ("m", "t", "k", "w", "s")
RARE = slice(49, 75)  # where the columns of those are


class Columns:
    """The rows of some units by kind: units, jobs, events, memos, takes, wakes, waits, states."""

    def __init__(self, units: Sequence[Unit], schema: str) -> None:
        self.events: list[tuple[int, int | None, NewEvent]] = []  # unit, job and event, as they are appended
        self._schema = schema
        self._runs = sorted({run for unit in units if (run := _run_of(unit)) is not None})
        self._handles = sorted({unit.claim.handle for unit in units if unit.claim is not None})
        self._run_places = {run: n for n, run in enumerate(self._runs, 1)}
        self._job_places = {pk: n for n, pk in enumerate(self._handles, 1)}
        self.rows: dict[str, list[tuple[Any, ...]]] = {kind: [] for kind in _SECONDARY}
        self._kinds: dict[str, bool] = {}  # of events told of; whether a gate for it is opened
        for n, unit in enumerate(units, 1):
            self._add(n, unit)
        self._stretches = list(_stretches(units))

    def values(self, now: int | None) -> list[Any]:
        """All of them, from `given_now` to `s_expires`."""
        locks = sorted((_kind_key(self._schema, kind), opened) for kind, opened in self._kinds.items())
        found: list[Any] = [now, [key for key, _ in locks], [opened for _, opened in locks]]
        found += (self._stretches, self._runs, self._handles)
        for kind, width in _SECONDARY.items():
            rows = self.rows[kind]
            found += map(list, zip(*rows, strict=True)) if rows else [[]] * width
        return found

    @property
    def common(self) -> bool:
        """Whether there is nothing but units, jobs and events."""
        return not any(self.rows[kind] for kind in _SELDOM)

    def _add(self, n: int, unit: Unit) -> None:
        rows = self.rows
        rows["u"].append(self._unit(unit))
        for event in unit.events:
            self._event(n, None, event)
        for job in unit.jobs:
            rows["j"].append(_job(n, job))
            if job.added is not None:
                self._event(n, len(rows["j"]), job.added)
        rows["m"] += [(n, memo.scope, memo.name, memo.value) for memo in unit.memos]
        rows["t"] += [(n, id) for id in unit.removes]
        rows["k"] += [(n, id) for id in unit.wakes]
        rows["s"] += [(n, write.key, write.value, write.expect, write.expires) for write in unit.state]
        for wait in unit.waits:
            if not isinstance(wait, NewWait):
                gone = (None,) * 3
                rows["w"].append((n, False, wait.id, *gone, wait.state, wait.lenient, *gone, None, None))
                continue
            if wait.topic is not None:
                self._kinds[wait.topic] = True
            opened = (wait.run, wait.scope, wait.kind, None, False, wait.due, wait.job, wait.topic, wait.key, wait.body)
            rows["w"].append((n, True, wait.id, *opened))

    def _event(self, n: int, job: int | None, event: NewEvent) -> None:
        self.events.append((n, job, event))
        self.rows["e"].append((n, job, event.stream, event.kind, event.body))
        if event.kind is not None:
            self._kinds.setdefault(event.kind, False)

    def _unit(self, unit: Unit) -> tuple[Any, ...]:
        claim, run, move = unit.claim, unit.run, unit.schedule
        of_run = _run_of(unit)
        guard = claim is not None and run is None and claim.run is not None and bool(unit.events or not unit.outcome)
        rest = bool(unit.removes or unit.wakes or unit.waits or unit.state or move or unit.once_key is not None)
        return (
            unit.id, needs_receipt(unit), *self._fence(claim), guard,
            self._run_places.get(of_run or ""), of_run, *(_run(run) if run is not None else _NO_RUN),
            *(_end(unit.outcome) if unit.outcome is not None and claim is not None else _NO_END),
            unit.progress, rest, unit.once_key,
            *((move.id, move.slot, move.next) if move is not None else (None, None, None)),
        )  # fmt: skip

    def _fence(self, claim: Claim | None) -> tuple[Any, ...]:
        if claim is None:
            return None, None, None
        return self._job_places[claim.handle], claim.attempt, claim.token


def ask_values(ask: ClaimRequest | None, secret: str) -> list[Any]:
    """From `worker` to `q_per_key`."""
    if ask is None:
        return [None, None, None, None, *([[]] * 6)]
    wants = ask.queues
    rates = [want.rate for want in wants]
    return [
        ask.worker, ask.lease_ms, secret, ask.limit if ask.limit is not None else sum(max(w.limit, 1) for w in wants),
        [want.queue for want in wants], [want.limit for want in wants], [want.max_active for want in wants],
        [rate.max if rate else None for rate in rates], [rate.duration_ms if rate else None for rate in rates],
        [rate.per_key if rate else None for rate in rates],
    ]  # fmt: skip


def _run_of(unit: Unit) -> str | None:
    """The run whose head the checks need."""
    if unit.run is not None:
        return unit.run.id
    return unit.claim.run if unit.claim is not None else None


def _run(run: RunWrite) -> tuple[Any, ...]:
    flags = run.closed + 2 * run.paused + 4 * run.cancel_jobs
    return run.expect, run.after, run.flow, run.status, flags, run.record


def _job(n: int, job: NewJob) -> tuple[Any, ...]:
    started = job.started
    return (
        n, job.id, job.queue, job.name, job.payload, job.priority, job.due, job.run, job.scope, job.opts,
        started.stream if started else None, started.body_prefix.decode() if started else None, job.rate_key,
    )  # fmt: skip


def _end(outcome: Outcome) -> tuple[Any, ...]:
    """How an attempt's end is kept: state, failures more, due, result, error."""
    match outcome:
        case Completed(result=result):
            return COMPLETED, 0, None, result, None
        case RetryAt(due=due, error=error):
            return DELAYED, 1, due, None, error
        case Dead(error=error):
            return FAILED, 1, None, None, error
        case Cancelled():
            return CANCELLED, 0, None, None, None
        case Suspended(due=due):
            return SUSPENDED if due is None else DELAYED, 0, due or 0, None, None
        case Released(due=due):
            return WAITING, 0, due, None, None  # delayed if that is still to come by the store's clock


def _stretches(units: Sequence[Unit]) -> Iterator[int]:
    """The last of each stretch of units whose writes can wait for each other: whoever reaches for jobs that it does
    not hold goes alone."""
    last = 0
    for n, unit in enumerate(units, 1):
        if unit.removes or unit.wakes or (unit.run is not None and unit.run.cancel_jobs):
            if last < n - 1:
                yield n - 1
            yield n
            last = n
    if last < len(units):
        yield len(units)


@lru_cache(maxsize=4096)
def _kind_key(schema: str, kind: str) -> int:
    return lock_key(f"{schema} kind {kind}")
