"""A clock that moves only when it is told to."""

from __future__ import annotations

from ..core.durations import Duration, to_ms

# 2023-11-14T22:13:20Z: a round number that is easy to recognise in a failing test.
START_MS = 1_700_000_000_000


class FakeClock:
    """Time under test. A store reads it from its own threads, so it is one integer and nothing else."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._now = start_ms

    def now_ms(self) -> int:
        return self._now

    def advance(self, by: Duration) -> int:
        """Moves on by "1h", a number of seconds or a timedelta; gives the new time."""
        self._now += to_ms(by)
        return self._now

    def set_ms(self, now_ms: int) -> None:
        """Sets the time, also to an earlier one: machines' clocks do go back."""
        self._now = now_ms

    def __repr__(self) -> str:
        return f"FakeClock({self._now})"
