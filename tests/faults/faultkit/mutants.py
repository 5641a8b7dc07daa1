"""Known bugs, put back on purpose: a fault suite that does not catch its mutants tests nothing.

Each mutant patches this process before anything runs; none of it is in the package. A patch whose target has changed
fails loudly. `python -m faultkit.mutants <name>` checks that a mutant applies.
"""

from __future__ import annotations

import sys
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

from . import child_mutants, wait_mutants
from .patches import replace, rewrite


@dataclass(frozen=True)
class Mutant:
    """A bug: its name, its effect and the suites that must catch it; `sweep:cancel` names a scenario."""

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


def is_caught_by_sweep(name: str) -> bool:
    """Return whether the sweep must catch a mutant: it does so in a second, and other suites search for minutes."""
    return any(suite.partition(":")[0] == "sweep" for suite in ALL[name].suites)


def of(suite: str) -> list[tuple[str, str]]:
    """Return the mutants that a suite must catch, each with the part of the suite that does."""
    found = []
    for mutant in ALL.values():
        for name in mutant.suites:
            head, _, part = name.partition(":")
            if head == suite:
                found.append((mutant.name, part))
    return found


def _rewrite_sql(statement: str, old: str, new: str) -> None:
    """Replace a part of an SQL statement, which must contain it."""
    text = getattr(SQL, statement)
    assert old in text, f"the statement {statement} no longer contains {old!r}: bring the mutant up to date"
    setattr(SQL, statement, text.replace(old, new))


# Commit


class _SplitCommitStore:
    """Commits the changes of an attempt first, and the jobs that it starts in a second commit."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, units: Sequence[Unit], request: ClaimRequest | None = None) -> CommitReply:
        first = [msgspec.structs.replace(unit, jobs=[]) for unit in units]
        reply = await self._inner.commit(first, request)
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

    def init(self: Any, store: Any, *rest: Any, **more: Any) -> None:
        original(self, _SplitCommitStore(store), *rest, **more)

    replace(group_commit.Committer, "__init__", init)


@mutant("a commit is accepted whichever worker holds the job now", "simulation", "pause")
def no_fence() -> None:
    def check(self: Any, unit: Unit, claim: Any, row: Any) -> Any:
        return Committed(repeated=True) if row is not None and row[3] == unit.id else None

    replace(committing.UnitWriter, "_check_fence", check)


@mutant("a run record is overwritten whatever its version", "simulation")
def no_version_check() -> None:
    original = committing.UnitWriter._check_version

    def check(self: Any, unit: Unit, run: Any, row: Any) -> Any:
        answer = original(self, unit, run, row)
        return None if isinstance(answer, Conflict) and run.expect else answer

    replace(committing.UnitWriter, "_check_version", check)


@mutant("a unit based on a refused unit is accepted if the version number matches", "simulation")
def versions_by_number() -> None:
    original = committing.UnitWriter._check_version

    def check(self: Any, unit: Unit, run: Any, row: Any) -> Any:
        return original(self, unit, msgspec.structs.replace(run, after=None), row)

    replace(committing.UnitWriter, "_check_version", check)


@mutant("a unit repeated after a lost reply is not recognised", "simulation", "sweep:plain job")
def repeats_not_recognised() -> None:
    _rewrite_sql("fence", "token, unit", "token, NULL")
    _rewrite_sql("run_version", "paused, unit", "paused, ''")
    _rewrite_sql("fence_and_run", "j.token, j.unit", "j.token, NULL")
    _rewrite_sql("fence_and_run", "r.paused, r.unit", "r.paused, ''")
    _rewrite_sql("applied_unit", "WHERE id = ?", "WHERE id = ? AND 0")
    _rewrite_sql("insert_unit", "INSERT INTO", "INSERT OR IGNORE INTO")


@mutant("a unit repeated after a lost reply gets a new id", "simulation", "sweep:plain job")
def new_id_on_repeat() -> None:
    original = group_commit.Committer._wait_and_repeat

    async def repeat(self: Any, batch: Any, problem: Any) -> None:
        for request in batch:
            request.unit = msgspec.structs.replace(request.unit, id=f"{request.unit.id}x")
        await original(self, batch, problem)

    replace(group_commit.Committer, "_wait_and_repeat", repeat)


@mutant("the second instance of a step gets the job id of the first", "simulation", "sweep:fan-out", "kill")
def job_id_reused() -> None:
    original = assemble.step_job_id
    replace(assemble, "step_job_id", lambda run, step, n: original(run, step, 1))


@mutant("a dead letter is redriven under the id of the job that died", "simulation", "sweep:dead letter")
def finished_job_id_reused() -> None:
    original = assemble.UnitBuilder.job

    def job(self: Any, id: str, *rest: Any, **more: Any) -> Any:
        return original(self, id.partition(".redrive-")[0], *rest, **more)

    replace(assemble.UnitBuilder, "job", job)


@mutant("a running attempt of a cancelled run continues to write logs and progress", "simulation", "sweep:cancel")
def live_output_after_the_end() -> None:
    _rewrite_sql("fence_in_run", "(SELECT closed FROM runs WHERE id = ?2)", "0 AND ?2")


@mutant("an idempotency key is accepted more than once", "simulation", "sweep:external")
def idempotency_keys_ignored() -> None:
    _rewrite_sql("once_key", "WHERE key = ?", "WHERE key = ? AND 0")
    _rewrite_sql("insert_once_key", "INSERT INTO", "INSERT OR IGNORE INTO")


@mutant("two redrives both redrive the same dead letter", "simulation")
def dead_letters_redriven_twice() -> None:
    _rewrite_sql(
        "removable_job",
        "SELECT 1 FROM jobs WHERE id = ?",
        "SELECT 1 WHERE ? IS NOT NULL OR EXISTS (SELECT 1 FROM jobs WHERE id = ''",
    )
    SQL.removable_job = SQL.removable_job + ")"  # type: ignore[attr-defined]


# Claim


@mutant("an attempt is not recorded when its job is claimed", "simulation", "sweep:linear", "kill")
def attempts_not_recorded() -> None:
    original = claiming.Claimer._claim_one

    def claim_one(self: Any, queue: str, row: Any, *rest: Any) -> Any:
        append, self._append = self._append, lambda _: []
        try:
            return original(self, queue, row, *rest)
        finally:
            self._append = append

    replace(claiming.Claimer, "_claim_one", claim_one)


@mutant("a claim takes jobs whose lease has not expired", "simulation")
def leases_ignored() -> None:
    _rewrite_sql("requeue_expired_leases", "lease <= ?", "? > 0")
    _rewrite_sql("peek_queue", "min(lease)", "0 * min(lease)")


@mutant("a lease never expires", "simulation", "kill")
def leases_never_expire() -> None:
    _rewrite_sql("requeue_expired_leases", "lease <= ?", "? < 0")


@mutant("cancelling a run leaves its queued jobs, and they are claimed", "simulation", "sweep:cancel")
def cancel_keeps_jobs() -> None:
    _rewrite_sql("cancel_jobs", "state IN (-1, 0, 1, 3)", "state IN (-2)")
    original = claiming.Claimer._is_runnable

    def is_runnable(self: Any, queue: str, row: Any) -> bool:
        _, _, closed, *_ = row
        return bool(closed) or original(self, queue, row)

    replace(claiming.Claimer, "_is_runnable", is_runnable)


@mutant("the next attempt does not see what an attempt recorded with `patch`", "simulation", "sweep:state")
def memos_ignored() -> None:
    _rewrite_sql("memos_of_scopes", "ON m.scope = s.value", "ON m.scope = s.value AND 0")


# Scheduler


class _SeparateMovesStore:
    """Moves schedules in a separate write, before or after the commit of what their slots start."""

    def __init__(self, inner: Any, before: bool) -> None:
        self._inner = inner
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, units: Sequence[Unit], request: ClaimRequest | None = None) -> CommitReply:
        moves = [unit for unit in units if unit.schedule is not None]
        if not moves:
            return await self._inner.commit(units, request)  # type: ignore[no-any-return]
        if self._before:
            guard = [Unit(f"{unit.id}-move", schedule=unit.schedule) for unit in moves]
            reply = await self._inner.commit(guard)
            if not all(isinstance(receipt, Committed) for receipt in reply.receipts):
                return reply  # type: ignore[no-any-return]
        reply = await self._inner.commit([msgspec.structs.replace(unit, schedule=None) for unit in units], request)
        if not self._before:
            for unit in moves:
                await self._move(unit.schedule)
        return reply  # type: ignore[no-any-return]

    async def _move(self, move: Any) -> None:
        row = await self._inner.schedule(move.id)
        moved = msgspec.structs.replace(row, next=move.next, last=move.slot, fired=row.fired + 1)
        await self._inner.put_schedule(moved, row)


def _separate_moves(before: bool) -> None:
    original = group_commit.Committer.__init__

    def init(self: Any, store: Any, *rest: Any, **more: Any) -> None:
        original(self, _SeparateMovesStore(store, before), *rest, **more)

    replace(group_commit.Committer, "__init__", init)


@mutant("a slot fires even if another scheduler fired it", "schedulers")
def slots_fired_twice() -> None:
    _separate_moves(before=False)


@mutant("a schedule is moved to its next slot before its slot has fired", "killed-schedulers")
def schedule_moved_before_fired() -> None:
    _separate_moves(before=True)


# Worker


@mutant("a job that may kill its worker runs together with others until its last attempt", "poison")
def bystanders_blamed() -> None:
    replace(quarantine.Quarantine, "concerns", lambda self, claim: False)


@mutant("a retry releases the next job of the order key", "killed-ordered")
def order_released_on_retry() -> None:
    replace(Unit, "frees_order_key", property(lambda unit: unit.order_key is not None and unit.outcome is not None))
    _rewrite_sql("release_order_head", "order_key = ?2 AND state < 4", "order_key = ?2 AND state = -1 AND state < 4")


# File


@mutant("transactions begin deferred", "processes")
def deferred_begin() -> None:
    rewrite(writing.Writer, "_run_transaction", '"BEGIN IMMEDIATE"', '"BEGIN"')


@mutant("a commit is acknowledged before it is on disk", "kill")
def acknowledged_before_commit() -> None:
    rewrite(
        writing.Writer, "_run_transaction", 'cursor.execute("COMMIT")', 'resolve(batch), time.sleep(0.01), cursor.execute("COMMIT")'
    )  # fmt: skip


# Waits


mutant("a step suspends even if its trigger was fired meanwhile", "simulation")(
    wait_mutants.suspend_without_trigger_check
)
mutant("a wait does not look back for events that came before it", "simulation", "sweep:event before")(
    wait_mutants.look_back_missing
)
mutant("an event that a step has consumed resolves another wait of it", "simulation")(
    wait_mutants.consumed_events_ignored
)
mutant("a wait is settled even if it is not pending", "simulation", "fires")(wait_mutants.settle_unchecked)
mutant("a timeout is recorded after the handler has seen it", "simulation")(wait_mutants.timeout_not_recorded)
mutant(
    "a wait is settled in one commit and its step woken in the next", "simulation", "sweep:event after", "waits-kill"
)(wait_mutants.wake_in_second_commit)
mutant("a job that is due soon is claimed now", "timers")(wait_mutants.timers_fire_early)
mutant("a job that came due while no worker ran is not claimed", "timers")(wait_mutants.overdue_timers_lost)
mutant("a cancelled wait expires later", "simulation")(wait_mutants.cancelled_waits_expire)
mutant("the handler sees the winner of ctx.first before it is recorded", "sweep:functions that race")(
    wait_mutants.winner_used_before_it_is_recorded
)
mutant("a child run ends in one commit and its parent is resumed in the next", "sweep:child runs", "calls-kill")(
    child_mutants.child_end_in_second_commit
)
mutant("a call is registered in one commit and its child started in the next", "sweep:child runs", "calls-kill")(
    child_mutants.child_start_in_second_commit
)
mutant("the event of a durable call is in one commit and its memo in the next", "calls-kill")(
    child_mutants.memo_in_second_commit
)
mutant("a run is cancelled in one commit and its children in the next", "sweep:cancelled parent")(
    child_mutants.children_follow_in_second_commit
)


if __name__ == "__main__":
    apply(sys.argv[1])
    print("{}")
