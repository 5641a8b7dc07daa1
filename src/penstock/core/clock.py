"""Time, injected. Nothing else in the package reads the machine's clock."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Protocol

from .errors import BadArgument

EARLIEST_MS = -62_135_596_800_000  # 0001-01-01
LATEST_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999
_CYCLE_MS = 146_097 * 86_400_000  # 400 years, after which the calendar repeats itself
_FAR = re.compile(r"([+-]\d{6,})(?=-)")


class Clock(Protocol):
    """Milliseconds since the epoch. Time under test is another Clock."""

    def now_ms(self) -> int: ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def iso(ms: int) -> str:
    """ISO 8601 in UTC with milliseconds, as the event envelope carries it."""
    try:
        # Whole seconds only: a float of seconds is a millisecond off beyond the year 2242.
        return f"{datetime.fromtimestamp(ms // 1000, UTC).isoformat()[:19]}.{ms % 1000:03}Z"
    except (ValueError, OverflowError, OSError):
        # Not of our making, but other programs write to the same queues: what is there can be shown, whatever it is.
        cycles, within = divmod(ms, _CYCLE_MS)
        year, rest = int(iso(within)[:4]) + 400 * cycles, iso(within)[4:]
        return f"{'-' if year < 0 else '+'}{abs(year):06}{rest}"


def from_iso(text: str) -> int:
    """Milliseconds since the epoch; a time without a zone is read as UTC."""
    if found := _FAR.match(text):  # a year that `iso` writes with a sign
        cycles, year = divmod(int(found[1]) - 1970, 400)
        return from_iso(f"{year + 1970}{text[found.end() :]}") + cycles * _CYCLE_MS
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def datetime_ms(moment: datetime) -> int:
    """Milliseconds since the epoch of a datetime that has a time zone."""
    if not isinstance(moment, datetime):
        raise BadArgument(f"{moment!r} is not a moment: give a datetime, such as datetime(2030, 1, 31, 9, tzinfo=UTC)")
    if moment.utcoffset() is None:
        raise BadArgument(
            f"{moment!r} has no time zone: write datetime.now(UTC), or datetime(…, tzinfo=ZoneInfo('Europe/Berlin'))"
        )
    ms = round(moment.timestamp() * 1000)
    if not EARLIEST_MS <= ms <= LATEST_MS:
        raise BadArgument(f"{moment!r} is out of range: moments lie between {iso(EARLIEST_MS)} and {iso(LATEST_MS)}")
    return ms
