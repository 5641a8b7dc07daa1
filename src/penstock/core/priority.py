"""Priorities: lower first. The range is the one every queue can hold."""

from __future__ import annotations

from typing import Any

from .errors import PayloadError

MAX_PRIORITY = 2_097_151


class BadPriority(PayloadError):
    """A priority is not a whole number in the range every store can hold."""

    code = "bad_priority"


def check_priority(value: Any) -> int:
    """The priority itself, or BadPriority with the range."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PRIORITY:
        raise BadPriority(f"priority={value!r}: give a whole number from 0 (first) to {MAX_PRIORITY:,}")
    return value
