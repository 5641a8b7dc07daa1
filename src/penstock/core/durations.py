"""Durations as people write them: "500ms", "1h", "1h30m", 2.5 (seconds) or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta
from math import isfinite
from typing import TypeGuard

from .errors import BadDuration
from .text import shorten

Duration = str | int | float | timedelta

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
MAX_TEXT_CHARS = 100
_NUMBER = re.compile(r"\d+(\.\d+)?")
_PART = re.compile(r"(?<![\d.])(\d++(?:\.\d++)?)(ms|s|m|h|d|w)")
MAX_DURATION_MS = 36_525 * 86_400_000  # a hundred years: every language can write that due time as a date
MAX_DURATION_TEXT = "36525d (100 years)"
_HINT = 'use "500ms", "30s", "1h30m", "7d", a number of seconds or a timedelta'
_TEXT_HINT = 'use "500ms", "30s", "1h30m", "7d" or a number of seconds'


def to_ms(value: Duration) -> int:
    """Convert a duration to whole milliseconds; raise BadDuration with the accepted forms if it is not one."""
    if isinstance(value, timedelta):
        ms = value.total_seconds() * 1000
    elif isinstance(value, str):
        ms = _parse(value)
    elif is_number(value):
        ms = value * 1000
    else:
        raise BadDuration(f"invalid duration {shorten(value)}; {_HINT}")
    if isinstance(ms, float) and not isfinite(ms):
        raise BadDuration(f"duration {shorten(value)} is not finite; the maximum is {MAX_DURATION_TEXT}")
    if ms < 0:
        raise BadDuration(f"a duration must not be negative, got {shorten(value)}")
    if ms > MAX_DURATION_MS:
        raise BadDuration(f"duration {shorten(value)} is too long; the maximum is {MAX_DURATION_TEXT}")
    return round(ms)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def ms_to_duration(ms: float) -> Duration:
    """Convert milliseconds, as other programs count, to a duration that `to_ms` will check."""
    return ms if ms > MAX_DURATION_MS else ms / 1000  # too long either way; Python may not be able to divide it


def _parse(text: str) -> float:
    compact = text.strip().lower().replace(" ", "") if len(text) <= MAX_TEXT_CHARS else ""
    if _NUMBER.fullmatch(compact):
        return float(compact) * 1000
    if not compact or _PART.sub("", compact):
        raise BadDuration(f"invalid duration {shorten(text)}; {_TEXT_HINT}")
    return sum(float(amount) * _UNITS[unit] for amount, unit in _PART.findall(compact))


def format_ms(ms: float) -> str:
    """Format milliseconds for people: 850 ms, 1.2 s, 3 min 20 s, 2 h 5 min, 1 h, 3 d 4 h."""
    if ms < 999.5:
        return f"{ms:.0f} ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {seconds} s" if seconds else "")
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    days, hours = divmod(hours, 24)
    return f"{days} d" + (f" {hours} h" if hours else "")
