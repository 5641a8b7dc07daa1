"""Handing out jobs: due ones, priority first, within the limits, with their run record and their `started` event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from ...core.ids import new_token
from ...ports.unit import Claim, ClaimBatch, ClaimRequest, NewEvent, QueueDemand, RateLimit, Started
from .append import SQL, Appender


class Claimer:
    """Claims inside the transaction the cursor is in."""

    def __init__(self, cursor: apsw.Cursor, now: int, appender: Appender) -> None:
        self._cursor = cursor
        self._now = now
        self._append = appender.append
        self.emptied: list[str] = []  # queues of which nothing due is left

    def claim(self, ask: ClaimRequest) -> ClaimBatch:
        claims: list[Claim] = []
        times: list[int | None] = []  # at which there may be more to take
        for want in ask.queues:
            if ask.limit is None or len(claims) < ask.limit:
                times += self._claim(want, ask, claims)
        return ClaimBatch(claims, min((time for time in times if time is not None), default=None))

    def _claim(self, want: QueueDemand, ask: ClaimRequest, claims: list[Claim]) -> tuple[int | None, ...]:
        """Takes what it can of one queue; gives the times at which there may be more."""
        queue, now, before = want.queue, self._now, len(claims)
        paused, hold, due, lease, waiting = self._cursor.execute(SQL.peek, (queue,)).fetchone()  # type: ignore[misc]
        if paused:
            return ()
        if due is not None and due <= now:
            self._cursor.execute(SQL.wake_delayed, (queue, now))
            waiting, due = True, self._one(SQL.next_due, queue)
        if lease is not None and lease <= now:
            self._cursor.execute(SQL.expired, (queue, now))
            waiting, lease = True, self._one(SQL.next_expiry, queue)
        if hold is not None and hold > now:
            return hold, due, lease
        if not waiting:
            self.emptied.append(queue)
            return due, lease
        lifted = self._take(want, ask, claims)
        if want.rate is not None:  # what it does not allow was put off
            due = self._one(SQL.next_due, queue)
        return lifted, due, lease, (now + ask.lease_ms if len(claims) > before else None)

    def _one(self, sql: str, queue: str) -> int | None:
        row = self._cursor.execute(sql, (queue,)).fetchone()
        return row[0] if row else None

    def _take(self, want: QueueDemand, ask: ClaimRequest, claims: list[Claim]) -> int | None:
        """Takes what the want allows; gives the time at which a limit that held it back is lifted."""
        left = want.limit if ask.limit is None else min(want.limit, ask.limit - len(claims))
        if want.max_active is not None:
            left = min(left, want.max_active - (self._one(SQL.count_active, want.queue) or 0))
        budget = _Budget(self._cursor, want.queue, want.rate, self._now) if want.rate else None
        page = left if budget is None else min(left, budget.room())
        while page > 0:
            # One more than wanted says whether any is left.
            rows = self._cursor.execute(SQL.waiting, (want.queue, page + 1)).fetchall()
            memos = self._memos(rows[:page])
            row: tuple[Any, ...]
            for row in rows[:page]:
                if not self._is_to_be_worked_on(row):
                    continue
                if budget is not None and not budget.spend(row[4]):
                    self._cursor.execute(SQL.postpone, (budget.until(row[4]), row[0]))
                else:
                    claims.append(self._activate(want.queue, row, memos.get(row[11] or row[7], {}), ask))
                    left -= 1
            if len(rows) <= page:
                self.emptied.append(want.queue)
                break
            page = left if budget is None else min(left, budget.room())
        if budget is not None:
            budget.save()
            return budget.held_until()
        return None

    def _is_to_be_worked_on(self, row: Sequence[Any]) -> bool:
        """Jobs are dropped with a run that is closed or gone, and held with one that is paused."""
        pk, run, closed, paused = row[:4]
        if run is None or (closed == 0 and not paused):
            return True
        if closed == 0:
            self._cursor.execute(SQL.hold, (pk,))
        else:
            self._cursor.execute(SQL.drop_closed, (self._now, pk))
        return False

    def _memos(self, rows: Sequence[Sequence[Any]]) -> dict[str, dict[str, bytes]]:
        """By scope, what is recorded of those that were handed out before, or go on for another: one read for all."""
        scopes = [row[11] or row[7] for row in rows if row[12] or row[11] is not None]
        found: dict[str, dict[str, bytes]] = {}
        if scopes:
            listed = msgspec.json.encode(scopes).decode()
            for scope, name, value in self._cursor.execute(SQL.memos_of, (listed,)):
                found.setdefault(scope, {})[name] = value
        return found

    def _activate(self, queue: str, row: Sequence[Any], memos: dict[str, bytes], ask: ClaimRequest) -> Claim:
        pk, run, _, _, _, version, record, job, name, payload, opts, scope, attempt, failures, crashes, stream, head = (
            row
        )
        execute = self._cursor.execute
        attempt += 1
        secret = new_token()
        execute(SQL.activate, (attempt, secret, self._now + ask.lease_ms, pk))
        if stream is not None:
            body = Started(stream, head).body(attempt, ask.worker)
            self._append((NewEvent(stream, body),))
        return Claim(
            job, queue, name, payload, opts, scope or job, attempt, secret, failures, crashes, pk, run, version or 0,
            record, memos, self._now,
        )  # fmt: skip


class _Budget:
    """What a rate limit still allows in the present window, for the queue or for each key."""

    def __init__(self, cursor: apsw.Cursor, queue: str, rate: RateLimit, now: int) -> None:
        self._cursor = cursor
        self._queue = queue
        self._rate = rate
        self._now = now
        self._windows: dict[str, tuple[int, int]] = {}
        self._changed: set[str] = set()

    def _window(self, key: str) -> tuple[int, int]:
        if key not in self._windows:
            row = self._cursor.execute(SQL.rate, (self._queue, key)).fetchone()
            # Who waited for the file may read an earlier clock than who began the window; more than a span earlier, and
            # the clock has gone back.
            fresh = row is None or not self._now < row[0] <= self._now + 2 * self._rate.duration_ms
            self._windows[key] = (row[0], row[1]) if row and not fresh else (self._now + self._rate.duration_ms, 0)
        return self._windows[key]

    def _key(self, key: object) -> str:
        return str(key or "") if self._rate.per_key else ""

    def room(self) -> int:
        """How many rows are worth looking at."""
        return self._rate.max - self._window("")[1] if not self._rate.per_key else 100

    def spend(self, key: object) -> bool:
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
            self._cursor.execute(SQL.set_rate, (self._queue, key, until, used))

    def held_until(self) -> int | None:
        if self._rate.per_key or self.room() > 0:
            return None
        return self._window("")[0]
