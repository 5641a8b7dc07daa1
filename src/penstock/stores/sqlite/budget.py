"""Rate limits: how much of a window is left."""

from __future__ import annotations

import apsw

from ...ports.unit import RateLimit
from .statements import SQL


class Budget:
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
