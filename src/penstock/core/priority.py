"""Job priorities: lower first, in the range every store supports."""

from __future__ import annotations

from typing import Any

from .errors import PayloadError

MAX_PRIORITY = 2_097_151


class BadPriority(PayloadError):
    """A priority is not a whole number in the range every store supports."""

    code = "bad_priority"


def check_priority(value: Any) -> int:
    """Return the priority, or raise BadPriority with the range."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PRIORITY:
        raise BadPriority(f"priority={value!r}: use a whole number from 0 (first) to {MAX_PRIORITY:,}")
    return value
