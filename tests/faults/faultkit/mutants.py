"""Known bugs, put back on purpose: a fault suite that does not catch its mutant tests nothing.

Each is a patch of this process, made before anything runs; none of it is in the package. A patch that no longer finds
what it changes fails loudly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

import penstock.commit.committer as group_commit
import penstock.flows.units as assemble
import penstock.worker.quarantine as quarantine
from penstock.ports.unit import ClaimRequest, CommitReply, Committed, Conflict, Unit
from penstock.stores.sqlite import claim as claiming
from penstock.stores.sqlite import commit as committing
from penstock.stores.sqlite import writer as writing
from penstock.stores.sqlite.statements import COMMIT as SQL

from . import wait_mutants


@dataclass(frozen=True)
class Mutant:
    """A bug: what it is called, what it does, which suites are to catch it; `sweep:cancel` names the scenario."""

    name: str
    what: str
    suites: tuple[str, ...]
    apply: Callable[[], None]


ALL: dict[str, Mutant] = {}


def mutant(what: str, *suites: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(apply: Callable[[], None]) -> Callable[[], None]:
        ALL[apply.__name__] = Mutant(apply.__name__, what, suites, apply)
        return apply

    return add


def apply(name: str) -> None:
    ALL[name].apply()


def of(suite: str) -> list[tuple[str, str]]:
    """The mutants a suite is to catch, each with the part of the suite that does."""
    found = []
    for mutant in ALL.values():
        for name in mutant.suites:
            head, _, part = name.partition(":")
            if head == suite:
                found.append((mutant.name, part))
    return found


def _rewrite(statement: str, old: str, new: str) -> None:
    text = getattr(SQL, statement)
    assert old in text, f"the statement {statement} no longer holds {old!r}: bring the mutant up to date"
    setattr(SQL, statement, text.replace(old, new))


# The commit


class _SplitStore:
    """Commits what an attempt changed, and only then the jobs that follow from it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, units: Sequence[Unit], ask: ClaimRequest | None = None) -> CommitReply:
        first = [msgspec.structs.replace(unit, jobs=[]) for unit in units]
        reply = await self._inner.commit(first, ask)
        rest = [
            Unit(f"{unit.id}-jobs", jobs=unit.jobs)
            for unit, receipt in zip(units, reply.receipts, strict=True)
            if unit.jobs and isinstance(receipt, Committed) and not receipt.repeated
        ]
        if rest:
            await self._inner.commit(rest)
        return reply  # type: ignore[no-any-return]


@mutant("an attempt's events and the jobs they start are two commits", "simulation", "sweep:linear", "kill")
def split_commit() -> None:
    original = group_commit.Committer.__init__

    def init(self: Any, store: Any) -> None:
        original(self, _SplitStore(store))

    group_commit.Committer.__init__ = init  # type: ignore[method-assign]


@mutant("a commit is taken whoever holds the job now", "simulation", "pause")
def no_fence() -> None:
    def check(self: Any, unit: Unit, claim: Any, row: Any) -> Any:
        return Committed(repeated=True) if row is not None and row[3] == unit.id else None

    assert hasattr(committing.UnitWriter, "_check_fence")
    committing.UnitWriter._check_fence = check  # type: ignore[method-assign]


@mutant("a run record is overwritten whatever its version", "simulation")
def no_version_check() -> None:
    original = committing.UnitWriter._check_version

    def check(self: Any, unit: Unit, run: Any, row: Any) -> Any:
        answer = original(self, unit, run, row)
        return None if isinstance(answer, Conflict) and run.expect else answer

    committing.UnitWriter._check_version = check  # type: ignore[method-assign]


@mutant("a decision made on a unit that was then refused is taken if the version number fits", "simulation")
def versions_by_number() -> None:
    original = committing.UnitWriter._check_version

    def check(self: Any, unit: Unit, run: Any, row: Any) -> Any:
        return original(self, unit, msgspec.structs.replace(run, after=None), row)

    committing.UnitWriter._check_version = check  # type: ignore[method-assign]


@mutant("a unit sent again after a lost reply is not recognised", "simulation", "sweep:plain job")
def repeats_unseen() -> None:
    _rewrite("fence", "token, unit", "token, NULL")
    _rewrite("run_version", "paused, unit", "paused, ''")
    _rewrite("fence_and_run", "j.token, j.unit", "j.token, NULL")
    _rewrite("fence_and_run", "r.paused, r.unit", "r.paused, ''")
    _rewrite("applied_unit", "WHERE id = ?", "WHERE id = ? AND 0")
    _rewrite("insert_unit", "INSERT INTO", "INSERT OR IGNORE INTO")


@mutant("a unit sent again after a lost reply is given a new id", "simulation", "sweep:plain job")
def new_id_on_repeat() -> None:
    original = group_commit.Committer._wait_and_repeat

    async def repeat(self: Any, batch: Any, problem: Any) -> None:
        for request in batch:
            request.unit = msgspec.structs.replace(request.unit, id=f"{request.unit.id}x")
        await original(self, batch, problem)

    group_commit.Committer._wait_and_repeat = repeat  # type: ignore[method-assign]


@mutant("the second instance of a step is given the job id of the first", "simulation", "sweep:fan-out", "kill")
def job_id_reused() -> None:
    original = assemble.step_job_id
    assemble.step_job_id = lambda run, step, n: original(run, step, 1)


@mutant("a dead letter is sent again under the id of the job that died", "simulation", "sweep:dead letter")
def finished_id_reused() -> None:
    original = assemble.Assembler.job

    def job(self: Any, id: str, *rest: Any, **more: Any) -> Any:
        return original(self, id.partition(".redrive-")[0], *rest, **more)

    assemble.Assembler.job = job  # type: ignore[method-assign]


@mutant("a running attempt of a cancelled run goes on writing logs and progress", "simulation", "sweep:cancel")
def frames_after_the_end() -> None:
    assert hasattr(committing.UnitWriter, "_is_closed")
    committing.UnitWriter._is_closed = lambda self, run: False  # type: ignore[method-assign]


@mutant("a key is taken as often as it is given", "simulation", "sweep:external")
def keys_ignored() -> None:
    _rewrite("once_key", "WHERE key = ?", "WHERE key = ? AND 0")
    _rewrite("insert_once_key", "INSERT INTO", "INSERT OR IGNORE INTO")


@mutant("two redrives both take the same dead letter", "simulation")
def letters_taken_twice() -> None:
    _rewrite(
        "removable_job",
        "SELECT 1 FROM jobs WHERE id = ?",
        "SELECT 1 WHERE ? IS NOT NULL OR EXISTS (SELECT 1 FROM jobs WHERE id = ''",
    )
    SQL.removable_job = SQL.removable_job + ")"  # type: ignore[attr-defined]


# The claim


@mutant("an attempt is not recorded when it is handed out", "simulation", "sweep:linear", "kill")
def attempts_unrecorded() -> None:
    original = claiming.Claimer._activate

    def activate(self: Any, queue: str, row: Any, *rest: Any) -> Any:
        append, self._append = self._append, lambda _: []
        try:
            return original(self, queue, row, *rest)
        finally:
            self._append = append

    claiming.Claimer._activate = activate  # type: ignore[method-assign]


@mutant("a claim takes jobs whose lease still runs", "simulation")
def leases_ignored() -> None:
    _rewrite("requeue_expired_leases", "lease <= ?", "? > 0")
    _rewrite("peek_queue", "min(lease)", "0 * min(lease)")


@mutant("a lease that ran out is never taken back", "simulation", "kill")
def leases_for_ever() -> None:
    _rewrite("requeue_expired_leases", "lease <= ?", "? < 0")


@mutant("cancelling a run leaves its queued jobs, and they are handed out", "simulation", "sweep:cancel")
def cancel_keeps_jobs() -> None:
    _rewrite("cancel_jobs", "state IN (-1, 0, 1, 3)", "state IN (-2)")
    original = claiming.Claimer._is_runnable

    def worked_on(self: Any, row: Any) -> bool:
        _, _, closed, *_ = row
        return bool(closed) or original(self, row)

    claiming.Claimer._is_runnable = worked_on  # type: ignore[method-assign]


@mutant("what an attempt recorded with `patch` is forgotten by the next", "simulation", "sweep:state")
def memos_forgotten() -> None:
    _rewrite("memos_of_scopes", "ON m.scope = s.value", "ON m.scope = s.value AND 0")


# The scheduler


class _LooseMoves:
    """Moves schedules in a write of its own, before or after what their slots start."""

    def __init__(self, inner: Any, before: bool) -> None:
        self._inner = inner
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, units: Sequence[Unit], ask: ClaimRequest | None = None) -> CommitReply:
        moves = [unit for unit in units if unit.schedule is not None]
        if not moves:
            return await self._inner.commit(units, ask)  # type: ignore[no-any-return]
        if self._before:
            guard = [Unit(f"{unit.id}-move", schedule=unit.schedule) for unit in moves]
            reply = await self._inner.commit(guard)
            if not all(isinstance(receipt, Committed) for receipt in reply.receipts):
                return reply  # type: ignore[no-any-return]
        reply = await self._inner.commit([msgspec.structs.replace(unit, schedule=None) for unit in units], ask)
        if not self._before:
            for unit in moves:
                await self._move(unit.schedule)
        return reply  # type: ignore[no-any-return]

    async def _move(self, move: Any) -> None:
        row = await self._inner.schedule(move.id)
        moved = msgspec.structs.replace(row, next=move.next, last=move.slot, fired=row.fired + 1)
        await self._inner.put_schedule(moved, row)


def _loose_moves(before: bool) -> None:
    original = group_commit.Committer.__init__

    def init(self: Any, store: Any) -> None:
        original(self, _LooseMoves(store, before))

    group_commit.Committer.__init__ = init  # type: ignore[method-assign]


@mutant("a slot fires whether or not another scheduler fired it", "schedulers")
def slots_unguarded() -> None:
    _loose_moves(before=False)


@mutant("a schedule is moved on before its slot has fired", "killed-schedulers")
def moved_before_fired() -> None:
    _loose_moves(before=True)


# The worker


@mutant("a job that may be killing its workers is run among others to the last", "poison")
def bystanders_blamed() -> None:
    assert hasattr(quarantine.Quarantine, "concerns")
    quarantine.Quarantine.concerns = lambda self, claim: False  # type: ignore[method-assign]


# The file


@mutant("transactions begin deferred", "processes")
def deferred_begin() -> None:
    def attempt(self: Any, batch: Any, *, may_wait: bool = True) -> None:
        cursor, self._busy_handler.is_disabled = self._cursor, not may_wait
        cursor.execute("BEGIN")
        try:
            for ticket in batch:
                ticket.result = ticket.work(cursor)
            cursor.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                cursor.execute("ROLLBACK")
            raise

    assert hasattr(writing.Writer, "_run_transaction")
    writing.Writer._run_transaction = attempt  # type: ignore[method-assign]


@mutant("a commit is answered before it is on disk", "kill")
def answered_too_early() -> None:
    import time

    def attempt(self: Any, batch: Any, *, may_wait: bool = True) -> None:
        cursor, self._busy_handler.is_disabled = self._cursor, not may_wait
        cursor.execute("BEGIN IMMEDIATE")
        try:
            for ticket in batch:
                ticket.result = ticket.work(cursor)
            writing.resolve(batch)
            time.sleep(0.01)
            cursor.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                cursor.execute("ROLLBACK")
            raise

    writing.Writer._run_transaction = attempt  # type: ignore[method-assign]


# Waits


mutant("a step goes to sleep whether or not its trigger was fired meanwhile", "simulation")(wait_mutants.gates_unnamed)
mutant("a gate does not look for what came before it", "simulation", "sweep:event before")(
    wait_mutants.look_back_left_out
)
mutant("an event that a step has had is given to it again", "simulation")(wait_mutants.taken_ignored)
mutant("a gate is closed whether or not it is open", "simulation", "fires")(wait_mutants.close_unchecked)
mutant("a timeout is recorded after the handler has heard of it", "simulation")(wait_mutants.timeout_unrecorded)
mutant("a gate is closed, and then its step is woken", "simulation", "sweep:event after", "waits-kill")(
    wait_mutants.wake_afterwards
)
mutant("what is due soon is handed out now", "timers")(wait_mutants.woken_before_time)
mutant("what came due while nobody worked is not handed out", "timers")(wait_mutants.timers_forgotten)
mutant("a cancelled wait expires later", "simulation")(wait_mutants.losers_expire_later)
mutant("who won is told before it is recorded", "sweep:functions that race")(
    wait_mutants.winner_used_before_it_is_recorded
)
