"""Applying units: every check first, every write after, so that a refused unit has touched nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import apsw

from ...ports.unit import (
    Cancelled,
    Claim,
    Committed,
    Completed,
    Conflict,
    Dead,
    Fenced,
    GivenBack,
    NewJob,
    OpenWait,
    Outcome,
    Receipt,
    Refused,
    RetryAt,
    RunWrite,
    Suspended,
    Unit,
)
from .append import Appender
from .look import Seen, forgettable, look
from .statements import ACTIVE, CANCELLED, COMPLETED, DELAYED, FAILED, SQL, SUSPENDED, WAITING
from .tape import Tape


class Committer:
    """Applies units inside the transaction the cursor is in. `touched` collects the topics to signal afterwards.

    What the checks look at is read once for many units; what they write to jobs and runs goes on the tape and into what
    was read, so that the next unit is checked on it. Everything rarer is read and written where it stands.
    """

    def __init__(self, cursor: apsw.Cursor, now: int, touched: set[str], appender: Appender, tape: Tape) -> None:
        self._cursor = cursor
        self._now = now
        self._touched = touched
        self._appender = appender
        self._append = appender.append
        self._tape = tape
        self._seen = Seen()

    def apply(self, units: Sequence[Unit]) -> list[Receipt]:
        receipts: list[Receipt] = []
        for stretch in _stretches(units):
            self._seen = look(self._cursor, stretch, self._appender)
            receipts += [self._apply(unit) for unit in stretch]
            self._tape.play()
        return receipts

    def _apply(self, unit: Unit) -> Receipt:
        remember = forgettable(unit)
        if remember and unit.id in self._seen.units:
            return Committed(repeated=True)
        refusal = self._check(unit)
        if refusal is not None:
            return refusal
        if remember:
            self._seen.units.add(unit.id)
            self._tape.add(("remember_unit", unit.id, self._now))
        return self._write(unit)

    # Checks

    def _check(self, unit: Unit) -> Receipt | None:
        if unit.claim is not None:
            refusal = self._check_fence(unit, unit.claim)
            if refusal is not None:
                return refusal
        if unit.run is not None:
            refusal = self._check_version(unit, unit.run)
            if refusal is not None:
                return refusal
        if unit.takes or unit.waits or unit.state or unit.schedule is not None or unit.once is not None:
            return self._check_rest(unit)
        return None

    def _check_fence(self, unit: Unit, claim: Claim) -> Receipt | None:
        fence = self._seen.fences.get(claim.handle)
        if fence is None:
            return Fenced()
        state, attempt, token, last = fence
        if last == unit.id:
            return Committed(repeated=True)
        if state != ACTIVE or token != claim.token or attempt != claim.attempt:
            return Fenced()
        if unit.run is None and claim.run is not None and (unit.events or unit.outcome is None):
            # A cancelled run's attempt may end, but nothing comes after the run's last event.
            return Fenced() if self._is_closed(claim.run) else None
        return None

    def _is_closed(self, run: str) -> bool:
        head = self._seen.runs.get(run)
        return head is None or bool(head[2])

    def _check_version(self, unit: Unit, run: RunWrite) -> Receipt | None:
        head = self._seen.runs.get(run.id)
        if head is None:
            return None if run.expect == 0 else Conflict(0, None)
        version, last = head[0], head[4]
        if last == unit.id:
            return Committed(repeated=True)
        if version != run.expect or (run.after is not None and run.after != last):
            self._tape.play()
            (record,) = self._cursor.execute(SQL.record, (run.id,)).fetchone()  # type: ignore[misc]
            return Conflict(version, record)
        return None

    def _check_rest(self, unit: Unit) -> Receipt | None:
        execute = self._cursor.execute
        if unit.once is not None and execute(SQL.seen, (unit.once,)).fetchone() is not None:
            return Refused("duplicate", unit.once)
        for job in unit.takes:
            if execute(SQL.takeable, (job,)).fetchone() is None:
                return Refused("taken", job)
        for wait in unit.waits:
            found = execute(SQL.wait_state, (wait.id,)).fetchone()
            if isinstance(wait, OpenWait):
                late = found is not None and found[0] in ("resolved", "expired")
            else:
                late = not wait.lenient and found != ("open",)
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
            self._write_job(unit, unit.claim)
        if unit.takes or unit.wakes:
            self._reach(unit)
        places = self._append(unit.events) if unit.events else []
        added = [self._add(job) for job in unit.jobs] if unit.jobs else []
        for memo in unit.memos:
            self._tape.add(("keep_memo", memo.scope, memo.name, memo.value))
        if unit.waits or unit.state or unit.schedule is not None or unit.once is not None:
            self._write_rest(unit)
        return Committed(places, added)

    def _reach(self, unit: Unit) -> None:
        """Takes and wakes jobs that others added; what the unit has done to its own comes first."""
        self._tape.play()
        for job in unit.takes:
            self._cursor.execute(SQL.take, (job,))
            self._seen.jobs.discard(job)
        for job in unit.wakes:
            self._touch_queues(SQL.wake, (job,))

    def _write_run(self, unit_id: str, run: RunWrite) -> None:
        add, now, before = self._tape.add, self._now, self._seen.runs.get(run.id)
        version = run.expect + 1
        if before is None:
            add(("begin_run", run.id, run.flow, run.status, run.closed, run.paused, now, unit_id, run.record))
        elif (run.status, run.closed, run.paused) == before[1:4]:
            add(("move_run", run.id, version, now, unit_id, run.record))
        else:
            add(("change_run", run.id, version, now, unit_id, run.record, run.status, run.closed, run.paused))
            if before[3] and not run.paused:
                self._touch_queues(SQL.release, (now, f"{run.id}.", f"{run.id}/", run.id))
        self._seen.runs[run.id] = (version, run.status, run.closed, run.paused, unit_id)
        if run.closed:
            self._cursor.execute(SQL.cancel_waits, (run.id,))
            self._touched.add(f"run:{run.id}")
        if run.cancel_jobs:
            self._cursor.execute(SQL.cancel_jobs, (now, unit_id, f"{run.id}.", f"{run.id}/", run.id))
            self._touched.add("cancelled")

    def _touch_queues(self, sql: str, values: tuple[object, ...]) -> None:
        for row in self._cursor.execute(sql, values).fetchall():
            self._touched.add(f"queue:{row[0]}")

    def _write_job(self, unit: Unit, claim: Claim) -> None:
        if unit.progress is not None:
            self._cursor.execute(SQL.set_progress, (unit.progress, claim.handle))
        outcome = unit.outcome
        if outcome is None:
            return
        state, due, finished, result, error, failures = _end(outcome, self._now)
        self._tape.add(("end_attempt", claim.handle, state, due, finished, unit.id, result, error, failures))
        self._seen.fences[claim.handle] = (state, claim.attempt, claim.token, unit.id)
        if isinstance(outcome, RetryAt | GivenBack | Suspended):
            self._touched.add(f"queue:{claim.queue}")

    def _add(self, job: NewJob) -> bool:
        seen = self._seen
        self._touched.add(f"queue:{job.queue}")
        if job.queue not in seen.queues:
            seen.queues.add(job.queue)
            self._tape.add(("know_queue", job.queue))
        if job.id in seen.jobs:
            return False
        seen.jobs.add(job.id)
        self._tape.add_job(job, self._now)
        if job.added is not None:
            self._append((job.added,))
        return True

    def _write_rest(self, unit: Unit) -> None:
        execute = self._cursor.execute
        for wait in unit.waits:
            if isinstance(wait, OpenWait):
                execute(
                    SQL.open_wait,
                    (
                        wait.id, wait.run, wait.scope, wait.kind, wait.due, wait.job, wait.topic, wait.key, wait.body,
                        self._appender.position,
                    ),
                )  # fmt: skip
            else:
                execute(SQL.close_wait, (wait.state, wait.id))
        for write in unit.state:
            if write.value is None:
                execute(SQL.delete_state, (write.key,))
            else:
                execute(SQL.set_state, (write.key, write.value, write.expires))
        if unit.schedule is not None:
            execute(SQL.move_schedule, (unit.schedule.next, unit.schedule.slot, unit.schedule.id))
        if unit.once is not None:
            execute(SQL.see, (unit.once, self._now))


def _stretches(units: Sequence[Unit]) -> Iterator[Sequence[Unit]]:
    """Units that can be checked on one look: whoever reaches for jobs that it does not hold goes alone."""
    stretch: list[Unit] = []
    for unit in units:
        alone = bool(unit.takes or unit.wakes) or (unit.run is not None and unit.run.cancel_jobs)
        if alone and stretch:
            yield stretch
            stretch = []
        stretch.append(unit)
        if alone:
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _end(outcome: Outcome, now: int) -> tuple[int, int | None, int | None, bytes | None, bytes | None, int]:
    """How an attempt's end is kept: state, due, finished, result, error, failures more."""
    match outcome:
        case Completed(result=result):
            return COMPLETED, None, now, result, None, 0
        case RetryAt(due=due, error=error):
            return DELAYED, due, None, None, error, 1
        case Dead(error=error):
            return FAILED, None, now, None, error, 1
        case Cancelled():
            return CANCELLED, None, now, None, None, 0
        case Suspended(due=due):
            return SUSPENDED if due is None else DELAYED, due or 0, None, None, None, 0
        case GivenBack(due=due):
            return DELAYED if due > now else WAITING, due, None, None, None, 0
