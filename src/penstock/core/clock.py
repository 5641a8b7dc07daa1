"""Time, injected. Nothing else in the package reads the machine's clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

from .errors import BadArgument


class Clock(Protocol):
    """Milliseconds since the epoch. Time under test is another Clock."""

    def now_ms(self) -> int: ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def iso(ms: int) -> str:
    """ISO 8601 in UTC with milliseconds, as the event envelope carries it."""
    # Whole seconds only: a float of seconds is a millisecond off beyond the year 2242.
    return f"{datetime.fromtimestamp(ms // 1000, UTC).isoformat()[:19]}.{ms % 1000:03}Z"


def from_iso(text: str) -> int:
    """Milliseconds since the epoch; a time without a zone is read as UTC."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def moment_ms(moment: datetime) -> int:
    """Milliseconds since the epoch of a datetime that has a time zone."""
    if not isinstance(moment, datetime):
        raise BadArgument(f"{moment!r} is not a moment: give a datetime, such as datetime(2030, 1, 31, 9, tzinfo=UTC)")
    if moment.utcoffset() is None:
        raise BadArgument(
            f"{moment!r} has no time zone: write datetime.now(UTC), or datetime(…, tzinfo=ZoneInfo('Europe/Berlin'))"
        )
    return round(moment.timestamp() * 1000)
