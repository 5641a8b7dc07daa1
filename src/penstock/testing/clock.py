"""A clock that moves only when a test moves it."""

from __future__ import annotations

from ..core.durations import Duration, to_ms

# 2023-11-14T22:13:20Z: a round number that is easy to recognise in a failed test.
START_MS = 1_700_000_000_000


class FakeClock:
    """A clock for tests. Stores read it from their own threads, so its state is a single integer."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._now = start_ms

    def now_ms(self) -> int:
        return self._now

    def advance(self, by: Duration) -> int:
        """Advance by "1h", a number of seconds or a timedelta; return the new time."""
        self._now += to_ms(by)
        return self._now

    def set_ms(self, now_ms: int) -> None:
        """Set the time. It may go back, as clocks of real machines do."""
        self._now = now_ms

    def __repr__(self) -> str:
        return f"FakeClock({self._now})"
