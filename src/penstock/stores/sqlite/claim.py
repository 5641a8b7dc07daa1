"""Claim due jobs, priority first, within the limits, with their run records and `started` events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from ...core.ids import new_token
from ...ports.unit import (
    DELIVERIES,
    Claim,
    ClaimBatch,
    ClaimFilter,
    ClaimRequest,
    NewEvent,
    QueueDemand,
    RateLimit,
    Started,
)
from .events import Appender
from .statements import CANCELLED
from .statements import COMMIT as SQL


class Claimer:
    """Claims jobs inside a transaction."""

    def __init__(self, cursor: apsw.Cursor, now: int, appender: Appender) -> None:
        self._cursor = cursor
        self._now = now
        self._append = appender.append
        self.emptied: list[str] = []  # queues without due jobs left

    def claim(self, request: ClaimRequest) -> ClaimBatch:
        """Claim what the request allows, and return when more may be due."""
        claims: list[Claim] = []
        times: list[int | None] = []  # when more jobs may be due
        for demand in request.queues:
            if request.limit is None or len(claims) < request.limit:
                times += self._claim(demand, request, claims)
        return ClaimBatch(claims, min((time for time in times if time is not None), default=None), self.emptied)

    def _claim(self, demand: QueueDemand, request: ClaimRequest, claims: list[Claim]) -> tuple[int | None, ...]:
        """Claim jobs of one queue. Return the times when more may be due."""
        queue, now, before = demand.queue, self._now, len(claims)
        paused, hold, due, lease, waiting = self._cursor.execute(SQL.peek_queue, (queue,)).fetchone()  # type: ignore[misc]
        if paused:
            return ()
        if due is not None and due <= now:
            self._cursor.execute(SQL.promote_due_jobs, (queue, now))
            waiting, due = True, self._fetch_value(SQL.next_due, queue)
        if lease is not None and lease <= now:
            self._cursor.execute(SQL.requeue_expired_leases, (queue, now))
            waiting, lease = True, self._fetch_value(SQL.next_lease_expiry, queue)
        if hold is not None and hold > now:
            return hold, due, lease
        if not waiting:
            self.emptied.append(queue)
            return due, lease
        limited_until = self._take(demand, request, claims)
        if demand.rate is not None:  # jobs over the limit were delayed
            due = self._fetch_value(SQL.next_due, queue)
        return limited_until, due, lease, (now + request.lease_ms if len(claims) > before else None)

    def _fetch_value(self, sql: str, queue: str) -> int | None:
        row = self._cursor.execute(sql, (queue,)).fetchone()
        return row[0] if row else None

    def _take(self, demand: QueueDemand, request: ClaimRequest, claims: list[Claim]) -> int | None:
        """Claim what the demand allows. Return when a rate limit that stopped it ends."""
        left = demand.limit if request.limit is None else min(demand.limit, request.limit - len(claims))
        if demand.max_active is not None:
            left = min(left, demand.max_active - (self._fetch_value(SQL.count_active, demand.queue) or 0))
        budget = _RateBudget(self._cursor, demand.queue, demand.rate, self._now) if demand.rate else None
        page = left if budget is None else min(left, budget.remaining())
        while page > 0:
            # One more than needed shows whether any is left.
            rows = self._waiting_jobs(demand.queue, request.only, page + 1)
            memos = self._memos(rows[:page])
            row: tuple[Any, ...]
            for row in rows[:page]:
                if not self._is_runnable(demand.queue, row):
                    continue
                if budget is not None and not budget.spend(row[4]):
                    self._cursor.execute(SQL.delay_job, (budget.until(row[4]), row[0]))
                elif claim := self._claim_one(demand.queue, row, memos.get(row[11] or row[7], {}), request):
                    claims.append(claim)
                    left -= 1
            if len(rows) <= page:
                if request.only is None:
                    self.emptied.append(demand.queue)
                break
            page = left if budget is None else min(left, budget.remaining())
        if budget is not None:
            budget.save()
            return budget.limited_until()
        return None

    def _waiting_jobs(self, queue: str, only: ClaimFilter | None, limit: int) -> list[tuple[Any, ...]]:
        if only is None or queue == DELIVERIES:
            return self._cursor.execute(SQL.waiting_jobs, (queue, limit)).fetchall()
        runs, jobs = (msgspec.json.encode(ids).decode() for ids in (only.runs, only.jobs))
        return self._cursor.execute(SQL.waiting_jobs_of, (queue, runs, jobs, limit)).fetchall()

    def _is_runnable(self, queue: str, row: Sequence[Any]) -> bool:
        """Return whether a job may run. Cancel it if its run is closed or deleted, hold it if the run is paused."""
        pk, run, closed, paused = row[:4]
        if run is None or (closed == 0 and not paused):
            return True
        if closed == 0:
            self._cursor.execute(SQL.hold_job, (pk,))
        else:
            self._cursor.execute(SQL.cancel_job, (self._now, pk))
            self._cursor.execute(SQL.count_finished, (queue, CANCELLED, 1))
        return False

    def _memos(self, rows: Sequence[Sequence[Any]]) -> dict[str, dict[str, bytes]]:
        """Read the memos of jobs that were claimed before or continue another job, by scope, with one statement."""
        scopes = [row[11] or row[7] for row in rows if row[12] or row[18] or row[11] is not None]
        found: dict[str, dict[str, bytes]] = {}
        if scopes:
            encoded = msgspec.json.encode(scopes).decode()
            for scope, name, value in self._cursor.execute(SQL.memos_of_scopes, (encoded,)):
                found.setdefault(scope, {})[name] = value
        return found

    def _claim_one(
        self, queue: str, row: Sequence[Any], memos: dict[str, bytes], request: ClaimRequest
    ) -> Claim | None:
        (
            pk, run, _, _, _, version, record, job, name, payload, opts, scope, attempt, failures, crashes, stream,
            prefix, kind, _,
        ) = row  # fmt: skip
        execute = self._cursor.execute
        attempt += 1
        token = new_token()
        execute(SQL.claim_job, (attempt, token, self._now + request.lease_ms, pk))
        if stream is not None and isinstance(prefix, bytes) and prefix[:1] == b"{" and prefix[-1:] == b",":
            body = Started(stream, prefix).body(attempt, request.worker)  # any other prefix is not ours: no event
            self._append((NewEvent(stream, body),))
        return Claim(
            job, queue, name, payload, opts, scope or job, attempt, token, failures, crashes, pk, run, version or 0,
            record, memos, self._now, kind or "flow",
        )  # fmt: skip


class _RateBudget:
    """Counts what a rate limit still allows in the present window, for the queue or for each key."""

    def __init__(self, cursor: apsw.Cursor, queue: str, rate: RateLimit, now: int) -> None:
        self._cursor = cursor
        self._queue = queue
        self._rate = rate
        self._now = now
        self._windows: dict[str, tuple[int, int]] = {}
        self._changed: set[str] = set()

    def _window(self, key: str) -> tuple[int, int]:
        if key not in self._windows:
            row = self._cursor.execute(SQL.rate_window, (self._queue, key)).fetchone()
            # A process that waited for the file may have read its clock before the window was started. If it is more
            # than one window earlier, the clock has gone back.
            is_new = row is None or not self._now < row[0] <= self._now + 2 * self._rate.duration_ms
            self._windows[key] = (row[0], row[1]) if row and not is_new else (self._now + self._rate.duration_ms, 0)
        return self._windows[key]

    def _key(self, key: object) -> str:
        return str(key or "") if self._rate.per_key else ""

    def remaining(self) -> int:
        """Return how many rows to read."""
        return self._rate.max - self._window("")[1] if not self._rate.per_key else 100

    def spend(self, key: object) -> bool:
        """Count one job, or return False if the limit is reached."""
        name = self._key(key)
        until, used = self._window(name)
        if used >= self._rate.max:
            return False
        self._windows[name] = (until, used + 1)
        self._changed.add(name)
        return True

    def until(self, key: object) -> int:
        return self._window(self._key(key))[0]

    def save(self) -> None:
        for key in self._changed:
            until, used = self._windows[key]
            self._cursor.execute(SQL.set_rate_window, (self._queue, key, until, used))

    def limited_until(self) -> int | None:
        if self._rate.per_key or self.remaining() > 0:
            return None
        return self._window("")[0]
