"""Handing out jobs: due ones, priority first, within the limits, with their run record and their `started` event."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import msgspec

from ...core.ids import token
from ...ports.unit import Ask, Claim, Claims, NewEvent, Started, Want
from .append import Appender
from .budget import Budget
from .statements import SQL
from .tape import Tape


class _Line(msgspec.Struct, array_like=True):
    """A queue as it stands; the times are those of its next delayed job and its next lease to run out."""

    queue: str
    paused: int
    waiting: int
    due: int | None
    lease: int | None

    def overdue(self, now: int) -> bool:
        return (self.due is not None and self.due <= now) or (self.lease is not None and self.lease <= now)


class _Job(msgspec.Struct, array_like=True):
    """A waiting job with what is known of its run; the sizes are of what comes beside it, in their order."""

    pk: int
    id: str
    name: str
    scope: str | None
    attempt: int
    failures: int
    crashes: int
    run: str | None
    stream: str | None
    rate_key: str | None
    version: int | None
    closed: int | None
    paused: int | None
    payload_size: int
    opts_size: int
    head_size: int | None
    record_size: int | None


_encode = msgspec.json.Encoder().encode
_lines = msgspec.json.Decoder(list[_Line]).decode
_jobs = msgspec.json.Decoder(list[_Job]).decode
_streams = msgspec.json.Decoder(list[tuple[str, int, int, int]]).decode
_Bodies = tuple[bytes, bytes, bytes, bytes]  # payload, opts, head of the started event, run record


class Claimer:
    """Claims inside the transaction the cursor is in."""

    def __init__(self, cursor: apsw.Cursor, now: int, appender: Appender, tape: Tape) -> None:
        self._cursor = cursor
        self._now = now
        self._appender = appender
        self._append = appender.append
        self._tape = tape
        self.emptied: list[str] = []  # queues of which nothing due is left

    def claim(self, ask: Ask) -> Claims:
        claims: list[Claim] = []
        dues: list[int | None] = []
        lines = self._lines([want.queue for want in ask.wants])
        for want, line in zip(ask.wants, lines, strict=True):
            if (ask.limit is not None and len(claims) >= ask.limit) or line.paused:
                continue
            if line.overdue(self._now):
                self._cursor.execute(SQL.wake_delayed, (want.queue, self._now))
                self._cursor.execute(SQL.expired, (want.queue, self._now))
                (line,) = self._lines([want.queue])
            before = len(claims)
            dues += [*self._take(want, ask, claims, bool(line.waiting)), line.due, line.lease]
            if len(claims) > before:
                dues.append(self._now + ask.lease_ms)
        return Claims(claims, min((due for due in dues if due is not None), default=None))

    def _lines(self, queues: list[str]) -> list[_Line]:
        row = self._cursor.execute(SQL.lines, (_encode(queues).decode(),)).fetchone()
        return _lines(row[0])  # type: ignore[index]

    def _take(self, want: Want, ask: Ask, claims: list[Claim], waiting: bool) -> list[int | None]:
        """Takes what the want allows; gives the times at which limits that held something back are lifted."""
        self._tape.play()  # a queue that is wanted twice has its first jobs no longer waiting
        left = want.limit if ask.limit is None else min(want.limit, ask.limit - len(claims))
        if want.max_active is not None:
            (active,) = self._cursor.execute(SQL.count_active, (want.queue,)).fetchone()  # type: ignore[misc]
            left = min(left, want.max_active - active)
        budget = Budget(self._cursor, want.queue, want.rate, self._now) if want.rate else None
        page = left if budget is None else min(left, budget.room())
        lifted: list[int | None] = []
        while page > 0:
            seen = 0
            for job, bodies in self._waiting(want.queue, page) if waiting else ():
                seen += 1
                head = self._run_head(job, bodies)
                if head is None:
                    continue
                if budget is not None and not budget.spend(job.rate_key):
                    lifted.append(budget.until(job.rate_key))
                    self._cursor.execute(SQL.postpone, (lifted[-1], job.pk))
                else:
                    claims.append(self._activate(want.queue, job, bodies, head, ask))
                    left -= 1
            if seen < page:
                self.emptied.append(want.queue)
                break
            page = left if budget is None else min(left, budget.room())
            if page > 0:
                self._tape.play()
        if budget is not None:
            budget.save()
            lifted.append(budget.held_until())
        return lifted

    def _waiting(self, queue: str, limit: int) -> Iterator[tuple[_Job, _Bodies]]:
        """The first jobs in line, read as one row: what is not text lies end to end in a second column."""
        row = self._cursor.execute(SQL.waiting, (queue, limit)).fetchone()
        jobs, body, heads = row  # type: ignore[misc]
        found = {head[0]: head for head in _streams(heads)}
        self._appender.know((), [found[name] for name in self._appender.unknown(set(found)) if name in found])
        at = 0
        for job in _jobs(jobs):
            opts = at + job.payload_size
            head = opts + job.opts_size
            record = head + (job.head_size or 0)
            end = record + (job.record_size or 0)
            yield job, (body[at:opts], body[opts:head], body[head:record], body[record:end])
            at = end

    def _run_head(self, job: _Job, bodies: _Bodies) -> tuple[int, bytes | None] | None:
        """Version and record of a job's run. None when it is not to be worked on: its jobs are dropped with a run that
        is closed or gone, and held with one that is paused."""
        if job.run is None:
            return 0, None
        if job.version is None or job.closed:
            self._cursor.execute(SQL.drop_closed, (self._now, job.pk))
            return None
        if job.paused:
            self._cursor.execute(SQL.hold, (job.pk,))
            return None
        return job.version, bodies[3]

    def _activate(self, queue: str, job: _Job, bodies: _Bodies, run_head: tuple[int, bytes | None], ask: Ask) -> Claim:
        version, record = run_head
        attempt = job.attempt + 1
        secret = token()
        self._tape.add(("hand_out", job.pk, attempt, secret, self._now + ask.lease_ms))
        if job.stream is not None:
            body = Started(job.stream, bodies[2]).body(attempt, ask.worker)
            self._append((NewEvent(job.stream, body),))
        scope = job.scope or job.id
        memos: dict[str, bytes] = {}
        if attempt > 1 or job.scope is not None:
            memos = dict(self._cursor.execute(SQL.memos_of, (scope,)).fetchall())  # type: ignore[arg-type]
        return Claim(
            job.id, queue, job.name, bodies[0], bodies[1], scope, attempt, secret, job.failures, job.crashes, job.pk,
            job.run, version, record, memos, self._now,
        )  # fmt: skip
