"""The clock, which is injected, and conversions between milliseconds, ISO 8601 and datetimes."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

from .errors import BadArgument
from .text import shorten

MIN_TIME_MS = -62_135_596_800_000  # 0001-01-01
MAX_TIME_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999
_CYCLE_MS = 146_097 * 86_400_000  # 400 years, after which the calendar repeats itself
_FAR = re.compile(r"([+-]\d{6,40})(?=-)")


class Clock(Protocol):
    """Returns milliseconds since the epoch. Tests pass their own clock."""

    def now_ms(self) -> int: ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def to_iso(ms: int) -> str:
    """Format milliseconds as ISO 8601 in UTC, as in the event envelope."""
    try:
        # Use whole seconds: a float of seconds is a millisecond off beyond the year 2242.
        return f"{_format_second(ms // 1000)}.{ms % 1000:03}Z"
    except (ValueError, OverflowError, OSError):
        # Other programs write to the same queues: show any number they wrote.
        cycles, within = divmod(ms, _CYCLE_MS)
        year, rest = int(to_iso(within)[:4]) + 400 * cycles, to_iso(within)[4:]
        return f"{'-' if year < 0 else '+'}{abs(year):06}{rest}"


@lru_cache(64)  # events of one moment are written and read together
def _format_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()[:19]


def from_iso(text: str) -> int:
    """Parse ISO 8601 to milliseconds since the epoch; a time without a zone is UTC."""
    if found := _FAR.match(text):  # a year that `to_iso` writes with a sign
        cycles, year = divmod(int(found[1]) - 1970, 400)
        return from_iso(f"{year + 1970}{text[found.end() :]}") + cycles * _CYCLE_MS
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def datetime_to_ms(moment: datetime) -> int:
    """Convert a datetime with a time zone to milliseconds since the epoch."""
    if not isinstance(moment, datetime):
        raise BadArgument(
            f"a time must be a datetime such as datetime(2030, 1, 31, 9, tzinfo=UTC), got {shorten(moment)}"
        )
    if moment.utcoffset() is None:
        raise BadArgument(
            f"{moment!r} has no time zone; use datetime.now(UTC) or datetime(…, tzinfo=ZoneInfo('Europe/Berlin'))"
        )
    ms = round(moment.timestamp() * 1000)
    if not MIN_TIME_MS <= ms <= MAX_TIME_MS:
        raise BadArgument(
            f"{moment!r} is out of range; a time must be from {to_iso(MIN_TIME_MS)} to {to_iso(MAX_TIME_MS)}"
        )
    return ms
