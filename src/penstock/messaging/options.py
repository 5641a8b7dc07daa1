"""Options that all bridges read in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..core.durations import to_ms
from ..core.errors import BadArgument
from ..core.text import shorten
from ..ports.unit import KeepJobs, RateLimit
from .failures import DeadLetters


def read_dead_letters(value: Any) -> DeadLetters:
    """Read `dead_letters`: a bool, or a mapping with `enabled` and `suffix`."""
    if isinstance(value, DeadLetters):
        return value
    if isinstance(value, bool):
        return DeadLetters(value)
    try:
        found = msgspec.convert(value, DeadLetters)
    except msgspec.ValidationError:
        raise BadArgument(
            f'dead_letters must be True, False or {{"enabled": True, "suffix": "-dlq"}}, got {shorten(value)}'
        ) from None
    if not found.suffix:
        raise BadArgument("the suffix of dead_letters must not be empty: a dead letter would go to its own queue")
    return found


def read_keep(value: Any, option: str) -> KeepJobs | None:
    """Read how many finished jobs to keep: a number, True for all, False for none."""
    if isinstance(value, bool):
        return None if value else KeepJobs(count=0)
    if type(value) is not int or value < 0:
        raise BadArgument(f"{option} must be a number of jobs, True or False, got {shorten(value)}")
    return KeepJobs(count=value)


def read_limiter(value: Any) -> RateLimit | None:
    """Read `"100/1m"`, or BullMQ's `{"max": 100, "duration": 60000}` in milliseconds."""
    if value is None or isinstance(value, RateLimit):
        return value
    try:
        if isinstance(value, str):
            count, _, duration = value.partition("/")
            limit = RateLimit(int(count), to_ms(duration))
        elif isinstance(value, Mapping):
            limit = RateLimit(int(value["max"]), int(value["duration"]))
        else:
            raise TypeError
        if limit.max < 1 or limit.duration_ms < 1:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise BadArgument(
            f'limiter must be "100/1m" or {{"max": 100, "duration": 60000}}, got {shorten(value)}'
        ) from None
    return limit
