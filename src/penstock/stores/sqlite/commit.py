"""Applying units: every check first, every write after, so that a refused unit has touched nothing."""

from __future__ import annotations

from typing import Any

import apsw

from ...ports.unit import (
    Cancelled,
    Claim,
    Committed,
    Completed,
    Conflict,
    Dead,
    Fenced,
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
    needs_receipt,
)
from . import children
from .append import SQL, Appender
from .keeping import Keeper

WAITING, DELAYED, ACTIVE, SUSPENDED, COMPLETED, FAILED, CANCELLED = range(7)
WAITING_CHILDREN = -2


class Committer:
    """Applies units inside the transaction the cursor is in. `touched` collects the topics to signal afterwards."""

    def __init__(self, cursor: apsw.Cursor, now: int, touched: set[str], appender: Appender) -> None:
        self._cursor = cursor
        self._now = now
        self._touched = touched
        self._appender = appender
        self._append = appender.append
        self.keeper = Keeper(cursor, now, touched)
        # Status, closed and paused of the run being written, as they were.
        self._head: tuple[str, int, int] = ("", 0, 0)
        # At least so many waits of the run being closed are open; None if nobody has looked.
        self._gates: int | None = None

    def apply(self, unit: Unit) -> Receipt:
        remember = needs_receipt(unit)
        if remember and self._cursor.execute(SQL.unit_applied, (unit.id,)).fetchone() is not None:
            return Committed(repeated=True)
        refusal = self._check(unit)
        if refusal is not None:
            return refusal
        if remember:
            self._cursor.execute(SQL.remember_unit, (unit.id, self._now))
        return self._write(unit)

    # Checks

    def _check(self, unit: Unit) -> Receipt | None:
        refusal = self._check_owner(unit)
        if refusal is not None:
            return refusal
        if not unit.children_settled or (unit.jobs and unit.jobs[0].waits_for_children):
            refused = children.check(self._cursor, unit)
            if refused is not None:
                return refused
        if unit.removes or unit.waits or unit.state or unit.schedule is not None or unit.once_key is not None:
            return self._check_rest(unit)
        return None

    def _check_owner(self, unit: Unit) -> Receipt | None:
        """The fence of its claim and the version of its run, read together if it has both."""
        claim, run = unit.claim, unit.run
        self._gates = None
        if claim is None:
            return None if run is None else self._check_version(unit, run, self._one(SQL.run_head, (run.id,)))
        if run is None:
            return self._check_fence(unit, claim, self._one(SQL.fence, (claim.handle,)))
        if run.closed:
            row = self._one(SQL.fence_and_last, (claim.handle, run.id, len(unit.waits) + 1))
            self._gates = row[10] if row else None
        else:
            row = self._one(SQL.fence_and_head, (claim.handle, run.id))
        refusal = self._check_fence(unit, claim, row and row[:4])
        return refusal or self._check_version(unit, run, row[4:10] if row and row[4] is not None else None)

    def _one(self, sql: str, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return self._cursor.execute(sql, values).fetchone()

    def _check_fence(self, unit: Unit, claim: Claim, row: tuple[Any, ...] | None) -> Receipt | None:
        if row is None:
            return Fenced()
        state, attempt, token, last = row
        if last == unit.id:
            return Committed(repeated=True)
        if state != ACTIVE or token != claim.token or attempt != claim.attempt:
            return Fenced()
        if unit.run is None and claim.run is not None and (unit.events or unit.outcome is None):
            # A cancelled run's attempt may end, but nothing comes after the run's last event.
            return Fenced() if self._is_closed(claim.run) else None
        return None

    def _is_closed(self, run: str) -> bool:
        return self._cursor.execute(SQL.run_closed, (run,)).fetchone() != (0,)

    def _check_version(self, unit: Unit, run: RunWrite, row: tuple[Any, ...] | None) -> Receipt | None:
        if row is None:
            return None if run.expect == 0 else Conflict(0, None)
        version, status, closed, paused, last, record = row
        if last == unit.id:
            return Committed(repeated=True)
        if version != run.expect or (run.after is not None and run.after != last):
            return Conflict(version, record)
        self._head = (status, closed, paused)
        return None

    def _check_rest(self, unit: Unit) -> Receipt | None:
        execute = self._cursor.execute
        if unit.once_key is not None and execute(SQL.seen, (unit.once_key,)).fetchone() is not None:
            return Refused("duplicate", unit.once_key)
        for job in unit.removes:
            if execute(SQL.takeable, (job,)).fetchone() is None:
                return Refused("taken", job)
        for wait in unit.waits:
            if isinstance(wait, SettleWait) and wait.lenient:
                continue
            found = execute(SQL.wait_state, (wait.id,)).fetchone()
            late = found in (("resolved",), ("expired",)) if isinstance(wait, NewWait) else found != ("pending",)
            if late:
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
                children.tell(self._cursor, unit, self._now, self._touched)
        for job in unit.removes:
            self._cursor.execute(SQL.take, (job,))
        for job in unit.wakes:
            self._wake(job)
        places = self._append(unit.events) if unit.events else []
        stand: dict[int, str] = {}
        if children.known(self._cursor, unit):
            added = [False] * len(unit.jobs)
        else:
            added = [self._add(n, job, stand) for n, job in enumerate(unit.jobs)]
        if unit.memos or unit.waits or unit.state or unit.schedule is not None or unit.once_key is not None:
            self._write_rest(unit)
        if unit.run is not None and unit.run.closed:
            self._close_run(unit.run)
        if isinstance(unit.outcome, Completed | Dead) and unit.outcome.keep is not None:
            self.keeper.ended(unit, unit.outcome.keep)
        return Committed(places, added, stand)

    def _write_run(self, unit_id: str, run: RunWrite) -> None:
        execute, now = self._cursor.execute, self._now
        if run.expect == 0:
            values = (run.id, run.flow, run.status, run.closed, run.paused, now, now, unit_id, run.record)
            execute(SQL.insert_run, values)
        elif (run.status, run.closed, run.paused) == self._head:
            execute(SQL.update_run, (run.expect + 1, now, unit_id, run.record, run.id))
        else:
            execute(
                SQL.update_run_status,
                (run.expect + 1, now, unit_id, run.record, run.status, run.closed, run.paused, run.id),
            )
            if self._head[2] and not run.paused:
                self._touch_queues(SQL.release, (now, f"{run.id}.", f"{run.id}/", run.id))
        if run.cancel_jobs:
            execute(SQL.cancel_jobs, (now, unit_id, f"{run.id}.", f"{run.id}/", run.id))
            self._touched.add("cancelled")

    def _close_run(self, run: RunWrite) -> None:
        """After the unit's own waits: one that the last unit of a run has resolved is not cancelled."""
        if self._gates != 0:
            self._cursor.execute(SQL.cancel_waits, (run.id,))
        self._touched.add(f"run:{run.id}")

    def _wake(self, job: str) -> None:
        found = self._one(SQL.asleep, (job,))  # RETURNING would take twice as long
        if found is not None:
            self._cursor.execute(SQL.wake, (found[0],))
            self._touched.add(f"queue:{found[1]}")

    def _touch_queues(self, sql: str, values: tuple[Any, ...]) -> None:
        for row in self._cursor.execute(sql, values).fetchall():
            self._touched.add(f"queue:{row[0]}")

    def _write_job(self, unit: Unit) -> None:
        claim, outcome = unit.claim, unit.outcome
        assert claim is not None
        execute, pk, now = self._cursor.execute, claim.handle, self._now
        if unit.progress is not None:
            execute(SQL.set_progress, (unit.progress, pk))
        match outcome:
            case None:
                return
            case Completed(result=result):
                execute(SQL.finish, (COMPLETED, now, unit.id, result, pk))
            case RetryAt(due=due, error=error):
                execute(SQL.retry_at, (due, unit.id, error, pk))
            case Dead(error=error):
                execute(SQL.fail, (FAILED, now, unit.id, error, pk))
            case Cancelled():
                execute(SQL.finish, (CANCELLED, now, unit.id, None, pk))
            case Suspended(due=due):
                execute(SQL.suspend, (SUSPENDED if due is None else DELAYED, due or 0, unit.id, pk))
            case Released(due=due, hold_until=hold):
                execute(SQL.give_back, (DELAYED if due > now else WAITING, due, unit.id, pk))
                if hold is not None:
                    execute(SQL.hold_queue, (claim.queue, hold))
        if isinstance(outcome, RetryAt | Released | Suspended):
            self._touched.add(f"queue:{claim.queue}")

    def _add(self, n: int, job: NewJob, stand: dict[int, str]) -> bool:
        started = job.started
        if job.dedupe is not None and (holder := self.keeper.holder(job, job.dedupe)) is not None:
            stand[n] = holder
            return False
        state = WAITING_CHILDREN if job.waits_for_children else DELAYED if job.due > self._now else WAITING
        self._cursor.execute(
            SQL.add_job,
            (
                job.id, job.queue, job.name, state, job.priority, job.due, job.run, job.scope, job.rate_key, self._now,
                started.stream if started else None, started.body_prefix if started else None, job.opts, job.payload,
            ),
        )  # fmt: skip
        added = self._cursor.connection.changes() == 1
        topic = f"queue:{job.queue}"
        if topic not in self._touched:
            self._cursor.execute(SQL.know_queue, (job.queue,))
            self._touched.add(topic)
        if added and job.dedupe is not None:
            self.keeper.hold(job, job.dedupe)
        if added and job.added is not None:
            self._append((job.added,))
        if added and job.parent is not None:
            children.adopt(self._cursor, job)
        return added

    def _write_rest(self, unit: Unit) -> None:
        execute = self._cursor.execute
        for memo in unit.memos:
            execute(SQL.memo, (memo.scope, memo.name, memo.value))
        for wait in unit.waits:
            if isinstance(wait, NewWait):
                execute(
                    SQL.open_wait,
                    (
                        wait.id, wait.run, wait.scope, wait.kind, wait.due, wait.job, wait.topic, wait.key, wait.body,
                        self._appender.place_gate(),
                    ),
                )  # fmt: skip
                self._gates = None
            else:
                execute(SQL.close_wait, (wait.state, wait.id))
                if self._gates is not None:
                    self._gates -= self._cursor.connection.changes()
        for write in unit.state:
            if write.value is None:
                execute(SQL.delete_state, (write.key,))
            else:
                execute(SQL.set_state, (write.key, write.value, write.expires))
        if unit.schedule is not None:
            execute(SQL.move_schedule, (unit.schedule.next, unit.schedule.slot, unit.schedule.id))
        if unit.once_key is not None:
            execute(SQL.see, (unit.once_key, self._now))
