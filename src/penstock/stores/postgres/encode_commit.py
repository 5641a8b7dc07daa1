"""Encode units as the arguments of the SQL function `commit_units`: one array of rows for each kind of write.

The rows are tuples in the order of the composite types in `migrations`. Positions count from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    RateLimit,
    Released,
    RetryAt,
    RunWrite,
    Suspended,
    Unit,
    WaitChange,
    gives_attempt_back,
    needs_receipt,
)
from ..child_results import error_text
from .migrate import lock_key
from .statements import CANCELLED, COMPLETED, DELAYED, FAILED, SUSPENDED, WAITING

Row = tuple[Any, ...]
_NO_RUN: Row = (None,) * 9
_NO_OUTCOME: Row = (None,) * 5
_EXTRAS = (
    "memos", "removes", "wakes", "waits", "states", "schedules", "once_keys", "dedupes", "holds", "keeps", "trees",
    "parents", "children", "child_ends", "orders", "cancels", "run_keys", "run_parents",
)  # fmt: skip


class EncodedUnits:
    """The rows of some units, and what is needed to read the reply of `commit_units`."""

    def __init__(self, units: Sequence[Unit], schema: str) -> None:
        self.events: list[tuple[int, int | None, NewEvent]] = []  # unit, job and event, in the order of the rows
        self.dedupes: list[tuple[int, int]] = []  # unit, and index in it, of each job with a dedupe key
        self.unit_rows: list[Row] = []
        self.job_rows: list[Row] = []
        self.event_rows: list[Row] = []
        self.extras: dict[str, list[Any]] = {}
        self.run_ids = sorted({run for unit in units if (run := _run_of(unit)) is not None})
        self.job_pks = sorted({unit.claim.handle for unit in units if unit.claim is not None})
        self._schema = schema
        self._run_positions = {run: n for n, run in enumerate(self.run_ids, 1)}
        self._job_positions = {pk: n for n, pk in enumerate(self.job_pks, 1)}
        self._topics: dict[str, bool] = {}  # kinds of events; whether a wait for one is created
        for n, unit in enumerate(units, 1):
            self._add(n, unit)
        self._groups = _group_ends(units)

    def arguments(self, now: int | None, request: Row | None) -> list[Any]:
        """Return the arguments in the order of the parameters."""
        extras = tuple([self.extras.get(name, []) for name in _EXTRAS]) if self.extras else None
        return [
            now, self._groups, self.run_ids, self.job_pks, self.topic_locks(), self.unit_rows, self.job_rows,
            self.event_rows, extras, request,
        ]  # fmt: skip

    def topic_locks(self) -> list[tuple[int, bool]]:
        """Return the advisory locks of the kinds of events, in the order in which they are taken."""
        return sorted((_topic_key(self._schema, kind), exclusive) for kind, exclusive in self._topics.items())

    def _add(self, n: int, unit: Unit) -> None:
        for event in unit.events:
            self._add_event(n, None, event)
        for index, job in enumerate(unit.jobs):
            self._add_job(n, index, job)
        has_extras = False
        if unit.run is not None and unit.run.keys:
            self._extend("run_keys", [(n, unit.run.id, key) for key in unit.run.keys])
        if unit.run is not None and unit.run.expect == 0 and (up := unit.run.parent) is not None:
            self._extend("run_parents", [(n, up.run, up.root, up.depth, up.call)])
        if unit.memos:
            self._extend("memos", [(n, memo.scope, memo.name, memo.value) for memo in unit.memos])
        if (
            unit.removes
            or unit.cancels
            or unit.wakes
            or unit.waits
            or unit.state
            or unit.schedule
            or unit.once_key is not None
        ):
            has_extras = True
            self._add_preconditions(n, unit)
        if unit.adds_tree:
            has_extras = True
            self._extend("trees", [n])
        if unit.claim is not None and unit.outcome is not None:
            has_extras |= self._add_end(n, unit, unit.claim)
        self.unit_rows.append(self._unit_row(unit, has_extras))

    def _add_event(self, n: int, job: int | None, event: NewEvent) -> None:
        self.events.append((n, job, event))
        self.event_rows.append((n, job, event.stream, event.kind, event.body, event.original))
        if event.kind is not None:
            self._topics.setdefault(event.kind, False)

    def _add_job(self, n: int, index: int, job: NewJob) -> None:
        started, parent, dedupe = job.started, job.parent, job.dedupe
        self.job_rows.append((
            n, job.id, job.queue, job.name, job.payload, job.priority, job.due, job.run, job.scope, job.opts,
            started.stream if started else None, started.body_prefix.decode() if started else None, job.rate_key,
            job.waits_for_children, job.order_key, job.error_group,
        ))  # fmt: skip
        position = len(self.job_rows)
        if job.added is not None:
            self._add_event(n, position, job.added)
        if parent is not None:
            self._extend("children", [(n, position, parent.id, parent.on_failure.value, parent.replaces)])
        if job.order_key is not None:
            self._extend("orders", [(n, job.queue, job.order_key)])
        if dedupe is not None:
            self.dedupes.append((n, index))
            self._extend("dedupes", [(n, position, job.id, job.queue, dedupe.key, dedupe.ttl_ms)])

    def _add_preconditions(self, n: int, unit: Unit) -> None:
        move = unit.schedule
        self._extend("removes", [(n, id) for id in unit.removes])
        self._extend("cancels", [(n, one.id, one.error, error_text(one.error), one.attempt) for one in unit.cancels])
        self._extend("wakes", [(n, id) for id in unit.wakes])
        self._extend("waits", [self._wait_row(n, wait) for wait in unit.waits])
        self._extend("states", [(n, write.key, write.value, write.expect, write.expires) for write in unit.state])
        if move is not None:
            self._extend("schedules", [(n, move.id, move.slot, move.next)])
        if unit.once_key is not None:
            self._extend("once_keys", [(n, unit.once_key)])

    def _add_end(self, n: int, unit: Unit, claim: Claim) -> bool:
        """Add what the end of an attempt brings besides. Return whether it depends on the job's children."""
        outcome = unit.outcome
        if isinstance(outcome, Released) and outcome.hold_until is not None:
            self._extend("holds", [(n, claim.queue, outcome.hold_until)])
        if (limit := _keep_limit(unit)) is not None:
            self._extend("keeps", [(n, *limit)])
        if unit.frees_order_key:
            self._extend("orders", [(n, claim.queue, unit.order_key)])
        if unit.parent is not None and (end := _child_end(outcome)) is not None:
            self._extend("child_ends", [(n, unit.parent, claim.job, *end)])
        if unit.children_settled or not isinstance(outcome, Completed):
            return False
        self._extend("parents", [n])
        return True

    def _extend(self, name: str, rows: list[Any]) -> None:
        if rows:
            self.extras.setdefault(name, []).extend(rows)

    def _wait_row(self, n: int, wait: WaitChange) -> Row:
        if not isinstance(wait, NewWait):
            return (
                n, False, wait.id, None, None, None, wait.state, wait.lenient, None, None, None, None, None, wait.final,
            )  # fmt: skip
        if wait.topic is not None:
            self._topics[wait.topic] = True
        return (
            n, True, wait.id, wait.run, wait.scope, wait.kind, None, False, wait.due, wait.job, wait.topic, wait.key,
            wait.body, False,
        )  # fmt: skip

    def _unit_row(self, unit: Unit, has_extras: bool) -> Row:
        claim, run = unit.claim, unit.run
        fence: Row = (None, None, None, False)
        if claim is not None:
            needs_open_run = run is None and claim.run is not None and bool(unit.events or not unit.outcome)
            fence = (self._job_positions[claim.handle], claim.attempt, claim.token, needs_open_run)
        return (
            unit.id, needs_receipt(unit), *fence, self._run_positions.get(_run_of(unit) or ""),
            *(_run_write(run) if run is not None else _NO_RUN),
            *(encode_outcome(unit.outcome) if unit.outcome is not None and claim is not None else _NO_OUTCOME),
            unit.progress, has_extras, int(gives_attempt_back(unit.outcome)),
        )  # fmt: skip


def encode_request(request: ClaimRequest | None, secret: str) -> Row | None:
    """Return a `claim_request`."""
    if request is None:
        return None
    wanted = request.limit
    if wanted is None:
        wanted = sum(max(demand.limit, 1) for demand in request.queues)
    is_limited = any(demand.max_active is not None or demand.rate is not None for demand in request.queues)
    rows = [(demand.queue, demand.limit, demand.max_active, *_rate(demand.rate)) for demand in request.queues]
    only = request.only
    runs, jobs = (list(only.runs), list(only.jobs)) if only is not None else (None, None)
    return request.worker, request.lease_ms, secret, wanted, is_limited, rows, runs, jobs


def _rate(rate: RateLimit | None) -> Row:
    return (rate.max, rate.duration_ms, rate.per_key) if rate is not None else (None, None, None)


def encode_outcome(outcome: Outcome) -> Row:
    """Return how the end of an attempt is stored: state, failures to add, due, result, error."""
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
            return WAITING, 0, due, None, None  # delayed if that is in the future by the store's clock


def _child_end(outcome: Outcome | None) -> Row | None:
    """Return state, value and reason of a child that has ended, for its parent."""
    match outcome:
        case Completed(result=result):
            return COMPLETED, b"null" if result is None else result, None
        case Dead(error=error):
            return FAILED, None, error_text(error)
        case Cancelled(reason=reason):
            return FAILED, None, reason  # for the parent it is a failure
        case _:
            return None


def _run_of(unit: Unit) -> str | None:
    """Return the run whose version and status the checks need."""
    if unit.run is not None:
        return unit.run.id
    return unit.claim.run if unit.claim is not None else None


def _run_write(run: RunWrite) -> Row:
    return run.expect, run.after, run.kind, run.flow, run.status, run.closed, run.paused, run.cancel_jobs, run.record


@lru_cache(maxsize=4096)
def _topic_key(schema: str, kind: str) -> int:
    return lock_key(f"{schema} kind {kind}")


def _group_ends(units: Sequence[Unit]) -> list[int]:
    """Return the position of the last unit of each group: `commit_units` checks it unit by unit, and writes it at once.

    A unit is a group of its own if it changes jobs that it has not claimed. A unit starts a new group if it depends on
    writes that a group makes at its end: it adds a tree of jobs, a job whose id an earlier unit sets free, or a job
    whose dedupe key an earlier unit asks for that may be refused.
    """
    ends: list[int] = []
    freed, uncertain, is_alone = set[str](), set[tuple[str, str]](), False
    for n, unit in enumerate(units):
        keys = {(job.queue, job.dedupe.key) for job in unit.jobs if job.dedupe is not None}
        changes_others = bool(
            unit.removes or unit.cancels or unit.wakes or (unit.run is not None and unit.run.cancel_jobs)
        )
        if n and (
            is_alone
            or changes_others
            or unit.adds_tree
            or not uncertain.isdisjoint(keys)
            or (freed and not freed.isdisjoint(job.id for job in unit.jobs))
        ):
            ends.append(n)
            freed, uncertain = set(), set()
        is_alone = changes_others
        if keys and not _is_certain(unit):
            uncertain |= keys
        if unit.claim is not None and _keep_limit(unit) is not None:
            freed.add(unit.claim.job)
    return [*ends, len(units)] if units else ends


def _keep_limit(unit: Unit) -> tuple[int, str, int, int | None, int | None] | None:
    """Return the job a unit ends and how many finished jobs like it are kept: key, queue, state, count, age."""
    claim, outcome = unit.claim, unit.outcome
    if claim is None or not isinstance(outcome, Completed | Dead) or outcome.keep is None:
        return None
    state = COMPLETED if isinstance(outcome, Completed) else FAILED
    return claim.handle, claim.queue, state, outcome.keep.count, outcome.keep.age_ms


def _is_certain(unit: Unit) -> bool:
    """Return whether nothing can refuse the unit."""
    return (
        unit.claim is None
        and unit.run is None
        and unit.once_key is None
        and not (unit.removes or unit.cancels or unit.waits or unit.state or unit.schedule)
    )
