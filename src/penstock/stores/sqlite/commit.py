"""Apply units inside a transaction: all checks first, all writes after, so that a refused unit writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import apsw

from ...ports.unit import (
    CancelJob,
    Cancelled,
    Claim,
    ClaimBatch,
    ClaimRequest,
    CommitReply,
    Committed,
    Completed,
    Conflict,
    Dead,
    Fenced,
    KeepJobs,
    NewJob,
    NewWait,
    Receipt,
    Refused,
    Released,
    RetryAt,
    RunWrite,
    SettleWait,
    Suspended,
    Unit,
    gives_attempt_back,
    needs_receipt,
    only_records_calls,
)
from . import children, dedupe, order_keys, retention
from .claim import Claimer
from .claim_one_by_one import CarefulClaimer
from .events import Appender
from .statements import ACTIVE, CANCELLED, COMPLETED, DELAYED, FAILED, HELD, SUSPENDED, WAITING, WAITING_CHILDREN
from .statements import COMMIT as SQL
from .stream_heads import StreamHeads


def commit(
    cursor: apsw.Cursor,
    now: int,
    units: Sequence[Unit],
    request: ClaimRequest | None,
    touched: set[str],
    heads: StreamHeads,
    *,
    queues: AbstractSet[str] = frozenset(),
    new_queues: set[str] | None = None,
    is_careful: bool = False,
) -> CommitReply:
    """Apply units in order, then claim the requested jobs. `touched` collects the topics to signal afterwards.

    `queues` have a row already, `new_queues` collects those that get one.

    A careful commit is slower: it repairs what it can, and a job that cannot be claimed fails alone."""
    appender = Appender(cursor, now, touched, heads, is_careful=is_careful)
    writer = UnitWriter(cursor, now, touched, appender, queues)
    receipts = [writer.apply(unit) for unit in units]
    if writer.keep_limits:
        retention.prune(cursor, writer.keep_limits, now, touched)
    claimed = ClaimBatch()
    if request is not None:
        claimer = Claimer(cursor, now, appender) if not is_careful else CarefulClaimer(cursor, now, appender)
        claimed = claimer.claim(request)
        # The caller has just received all due jobs of these queues: a wake-up would find nothing.
        touched.difference_update(f"queue:{queue}" for queue in claimer.emptied)
    if writer.finished:
        cursor.executemany(SQL.count_finished, [(*key, n) for key, n in writer.finished.items()])
    appender.flush()
    if new_queues is not None:
        new_queues |= writer.new_queues
    return CommitReply(receipts, claimed, now)


class UnitWriter:
    """Checks and writes units. `touched` collects the topics to signal after the commit."""

    def __init__(
        self, cursor: apsw.Cursor, now: int, touched: set[str], appender: Appender, queues: AbstractSet[str]
    ) -> None:
        self._queues = queues  # those that have a row
        self.new_queues: set[str] = set()
        self._cursor = cursor
        self._now = now
        self._touched = touched
        self._appender = appender
        self._append = appender.append
        self.keep_limits: retention.KeepLimits = {}  # of the jobs that finished
        self.finished: dict[tuple[str, int], int] = {}  # how many jobs ended, by queue and state
        # Status, closed and paused of the run, before this unit.
        self._run_before: tuple[str, int, int] = ("", 0, 0)
        # A lower bound of the pending waits of the run that this unit closes; None if not counted.
        self._pending_waits: int | None = None

    def apply(self, unit: Unit) -> Receipt:
        """Write a unit, or return why it is refused or was applied before."""
        if unit.memos and only_records_calls(unit):
            return self._check_owner(unit) or self._write_calls(unit)
        needs_row = needs_receipt(unit)
        if needs_row and self._cursor.execute(SQL.applied_unit, (unit.id,)).fetchone() is not None:
            return Committed(repeated=True)
        refusal = self._check(unit)
        if refusal is not None:
            return refusal
        if needs_row:
            self._cursor.execute(SQL.insert_unit, (unit.id, self._now))
        return self._write(unit)

    # Checks

    def _check(self, unit: Unit) -> Receipt | None:
        refusal = self._check_owner(unit)
        if refusal is not None:
            return refusal
        if not unit.children_settled or unit.adds_tree:
            refusal = children.check(self._cursor, unit)
            if refusal is not None:
                return refusal
        if (
            unit.removes
            or unit.waits
            or unit.state
            or unit.schedule is not None
            or unit.once_key is not None
            or unit.cancels
        ):
            return self._check_rest(unit)
        return None

    def _check_owner(self, unit: Unit) -> Receipt | None:
        """Check the fence of the claim and the version of the run. Read both with one statement if there are both."""
        claim, run = unit.claim, unit.run
        self._pending_waits = None
        if claim is None:
            return None if run is None else self._check_version(unit, run, self._fetch_one(SQL.run_version, (run.id,)))
        if run is None:
            return self._check_fence_of_attempt(unit, claim)
        if run.closed:
            row = self._fetch_one(SQL.fence_run_and_waits, (claim.handle, run.id, len(unit.waits) + 1))
            self._pending_waits = row[10] if row else None
        else:
            row = self._fetch_one(SQL.fence_and_run, (claim.handle, run.id))
        refusal = self._check_fence(unit, claim, row and row[:4])
        return refusal or self._check_version(unit, run, row[4:10] if row and row[4] is not None else None)

    def _fetch_one(self, sql: str, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return self._cursor.execute(sql, values).fetchone()

    def _check_fence_of_attempt(self, unit: Unit, claim: Claim) -> Receipt | None:
        """Check the fence of a unit that leaves its run as it is."""
        if claim.run is None or not (unit.events or unit.outcome is None):
            return self._check_fence(unit, claim, self._fetch_one(SQL.fence, (claim.handle,)))
        row = self._fetch_one(SQL.fence_in_run, (claim.handle, claim.run))
        refusal = self._check_fence(unit, claim, row and row[:4])
        # An attempt of a cancelled run may end, but must not append after the run's last event.
        return Fenced() if refusal is None and row is not None and row[4] != 0 else refusal

    def _check_fence(self, unit: Unit, claim: Claim, row: tuple[Any, ...] | None) -> Receipt | None:
        if row is None:
            return Fenced()
        state, attempt, token, last = row
        if last == unit.id:
            return Committed(repeated=True)
        if state != ACTIVE or token != claim.token or attempt != claim.attempt:
            return Fenced()
        return None

    def _check_version(self, unit: Unit, run: RunWrite, row: tuple[Any, ...] | None) -> Receipt | None:
        if row is None:
            return None if run.expect == 0 else Conflict(0, None)
        version, status, closed, paused, last, record = row
        if last == unit.id:
            return Committed(repeated=True)
        if version != run.expect or (run.after is not None and run.after != last):
            return Conflict(version, record)
        self._run_before = (status, closed, paused)
        return None

    def _check_rest(self, unit: Unit) -> Receipt | None:
        execute = self._cursor.execute
        if unit.once_key is not None and execute(SQL.once_key, (unit.once_key,)).fetchone() is not None:
            return Refused("duplicate", unit.once_key)
        for job in unit.removes:
            if execute(SQL.removable_job, (job,)).fetchone() is None:
                return Refused("taken", job)
        for cancel in unit.cancels:
            if execute(SQL.open_job, (cancel.id, cancel.attempt)).fetchone() is None:
                return Refused("taken", cancel.id)
        for wait in unit.waits:
            if isinstance(wait, SettleWait) and wait.lenient:
                continue
            state, final = execute(SQL.wait_state, (wait.id,)).fetchone() or (None, 0)
            if state in ("resolved", "expired") or final if isinstance(wait, NewWait) else state != "pending":
                return Refused("wait", wait.id)
        for write in unit.state:
            if write.expect is not None:
                row = execute(SQL.state_version, (write.key, self._now)).fetchone()
                if (row[0] if row else 0) != write.expect:
                    return Refused("state", write.key)
        move = unit.schedule
        if move is not None and execute(SQL.schedule_slot, (move.id,)).fetchone() != (move.slot,):
            return Refused("schedule", move.id)
        return None

    # Writes

    def _write(self, unit: Unit) -> Committed:
        if unit.run is not None:
            self._write_run(unit.id, unit.run)
        if unit.claim is not None:
            self._write_job(unit)
            if unit.parent is not None:
                children.settle(self._cursor, unit, self._now, self._touched)
            if unit.frees_order_key:
                self._release_head(unit.claim.queue, unit.order_key)
        for job in unit.removes:
            self._remove_job(job)
        for cancel in unit.cancels:
            self._cancel_job(unit.id, cancel)
        for job in unit.wakes:
            self._wake_job(job)
        positions = self._append(unit.events) if unit.events else []
        deduplicated: dict[int, str] = {}
        if unit.adds_tree and children.job_exists(self._cursor, unit.jobs[0].id):  # it was added before, as a whole
            added = [False] * len(unit.jobs)
        else:
            added = [self._add_job(n, job, deduplicated) for n, job in enumerate(unit.jobs)]
        if unit.memos or unit.waits or unit.state or unit.schedule is not None or unit.once_key is not None:
            self._write_rest(unit)
        if unit.run is not None and unit.run.closed:
            self._close_run(unit.run)
        if isinstance(unit.outcome, Completed | Dead) and unit.outcome.keep is not None:
            self._keep_finished(unit, unit.outcome.keep)
        return Committed(positions, added, deduplicated)

    def _write_calls(self, unit: Unit) -> Committed:
        execute, connection = self._cursor.execute, self._cursor.connection
        for n, memo in enumerate(unit.memos):
            execute(SQL.insert_memo, (memo.scope, memo.name, memo.value))
            if n == 0 and connection.changes() == 0:
                return Committed(repeated=True)
        return Committed(self._append(unit.events))

    def _write_run(self, unit_id: str, run: RunWrite) -> None:
        execute, now = self._cursor.execute, self._now
        if run.expect == 0:
            values = (run.id, run.kind, run.flow, run.status, run.closed, run.paused, now, now, unit_id, run.record)
            execute(SQL.insert_run, values)
            if (up := run.parent) is not None:
                execute(SQL.set_run_parent, (up.run, up.root, up.depth, up.call, run.id))
        elif (run.status, run.closed, run.paused) == self._run_before:
            execute(SQL.update_run, (run.expect + 1, now, unit_id, run.record, run.id))
        else:
            execute(
                SQL.update_run_status,
                (run.expect + 1, now, unit_id, run.record, run.status, run.closed, run.paused, run.id),
            )
            if self._run_before[2] and not run.paused:
                self._touch_queues(SQL.release_held_jobs, (now, f"{run.id}.", f"{run.id}/", run.id))
        for key in run.keys:
            execute(SQL.insert_run_key, (key, run.id))
        if run.cancel_jobs:
            for (queue,) in execute(SQL.cancel_jobs, (now, unit_id, f"{run.id}.", f"{run.id}/", run.id)).fetchall():
                self._count_end(str(queue), CANCELLED)
            self._touched.add("cancelled")

    def _close_run(self, run: RunWrite) -> None:
        """Cancel the pending waits of a run, after the unit's own waits: those that it resolves are not cancelled."""
        if self._pending_waits != 0:
            self._cursor.execute(SQL.cancel_waits, (run.id, self._now))
        self._touched.add(f"run:{run.id}")

    def _count_end(self, queue: str, state: int) -> None:
        self.finished[queue, state] = self.finished.get((queue, state), 0) + 1

    def _remove_job(self, job: str) -> None:
        for queue, order_key in self._cursor.execute(SQL.remove_job, (job,)).fetchall():
            self._release_head(str(queue), order_key)

    def _cancel_job(self, unit_id: str, cancel: CancelJob) -> None:
        found = self._cursor.execute(SQL.cancel_any_job, (self._now, unit_id, cancel.error, cancel.id)).fetchall()
        for queue, order_key in found:
            self._count_end(str(queue), CANCELLED)
            self._release_head(str(queue), order_key)
        children.settle_cancelled(self._cursor, cancel.id, cancel.error, self._now, self._touched)
        self._touched.add("cancelled")

    def _release_head(self, queue: str, order_key: Any) -> None:
        if order_key is not None:
            order_keys.release_head(self._cursor, queue, order_key, self._now, self._touched)

    def _wake_job(self, job: str) -> None:
        found = self._fetch_one(SQL.sleeping_job, (job,))  # RETURNING takes twice as long
        if found is not None:
            self._cursor.execute(SQL.wake_job, (found[0],))
            self._touched.add(f"queue:{found[1]}")

    def _touch_queues(self, sql: str, values: tuple[Any, ...]) -> None:
        for row in self._cursor.execute(sql, values).fetchall():
            self._touched.add(f"queue:{row[0]}")

    def _write_job(self, unit: Unit) -> None:
        claim, outcome = unit.claim, unit.outcome
        assert claim is not None
        execute, pk, now, back = self._cursor.execute, claim.handle, self._now, gives_attempt_back(outcome)
        if unit.progress is not None:
            execute(SQL.set_progress, (unit.progress, pk))
        match outcome:
            case None:
                return
            case Completed(result=result):
                execute(SQL.finish_job, (COMPLETED, now, unit.id, result, pk))
                self._count_end(claim.queue, COMPLETED)
            case RetryAt(due=due, error=error):
                execute(SQL.retry_job, (due, unit.id, error, pk))
            case Dead(error=error):
                execute(SQL.fail_job, (FAILED, now, unit.id, error, back, pk))
                self._count_end(claim.queue, FAILED)
            case Cancelled():
                execute(SQL.finish_job, (CANCELLED, now, unit.id, None, pk))
                self._count_end(claim.queue, CANCELLED)
            case Suspended(due=due):
                execute(SQL.suspend_job, (SUSPENDED if due is None else DELAYED, due or 0, unit.id, back, pk))
            case Released(due=due, hold_until=hold_until):
                execute(SQL.release_job, (DELAYED if due > now else WAITING, due, unit.id, back, pk))
                if hold_until is not None:
                    execute(SQL.hold_queue, (claim.queue, hold_until))
        if isinstance(outcome, RetryAt | Released | Suspended):
            self._touched.add(f"queue:{claim.queue}")

    def _keep_finished(self, unit: Unit, keep: KeepJobs) -> None:
        """Delete a finished job that is not kept at all, so that its id is free. Otherwise prune its queue later."""
        assert unit.claim is not None
        if keep.count == 0:
            retention.delete_jobs(self._cursor, SQL.delete_job, (unit.claim.handle,), self._now, self._touched)
        else:
            state = COMPLETED if isinstance(unit.outcome, Completed) else FAILED
            self.keep_limits[unit.claim.queue, state] = keep

    def _add_job(self, n: int, job: NewJob, deduplicated: dict[int, str]) -> bool:
        started = job.started
        holder = dedupe.find_holder(self._cursor, job, job.dedupe, self._now) if job.dedupe is not None else None
        if holder is not None:
            deduplicated[n] = holder
            return False
        state = WAITING_CHILDREN if job.waits_for_children else DELAYED if job.due > self._now else WAITING
        if job.order_key is not None and order_keys.has_open_job(self._cursor, job.queue, job.order_key):
            state = HELD
        self._cursor.execute(
            SQL.insert_job,
            (
                job.id, job.queue, job.name, state, job.priority, job.due, job.run, job.scope, job.rate_key, self._now,
                started.stream if started else None, started.body_prefix if started else None, job.opts, job.payload,
                job.order_key, job.error_group,
            ),
        )  # fmt: skip
        added = self._cursor.connection.changes() == 1
        self._touched.add(f"queue:{job.queue}")
        if job.queue not in self._queues and job.queue not in self.new_queues:
            self._cursor.execute(SQL.insert_queue, (job.queue,))
            self.new_queues.add(job.queue)
        if added and job.dedupe is not None:
            dedupe.hold_key(self._cursor, job, job.dedupe, self._now)
        if added and job.added is not None:
            self._append((job.added,))
        if added and job.parent is not None:
            children.add_child(self._cursor, job)
        return added

    def _write_rest(self, unit: Unit) -> None:
        execute = self._cursor.execute
        for memo in unit.memos:
            execute(SQL.insert_memo, (memo.scope, memo.name, memo.value))
        for wait in unit.waits:
            if isinstance(wait, NewWait):
                execute(
                    SQL.upsert_wait,
                    (
                        wait.id, wait.run, wait.scope, wait.kind, wait.due, wait.job, wait.topic, wait.key, wait.body,
                        self._appender.wait_position(), self._now,
                    ),
                )  # fmt: skip
                self._pending_waits = None
            else:
                execute(SQL.settle_wait, (wait.state, self._now, wait.final, wait.id))
                if self._pending_waits is not None:
                    self._pending_waits -= self._cursor.connection.changes()
        for write in unit.state:
            if write.value is None:
                execute(SQL.delete_state, (write.key,))
            else:
                execute(SQL.set_state, (write.key, write.value, write.expires))
        if unit.schedule is not None:
            execute(SQL.move_schedule, (unit.schedule.next, unit.schedule.slot, unit.schedule.id))
        if unit.once_key is not None:
            execute(SQL.insert_once_key, (unit.once_key, self._now))
