"""Durations and times as the API takes them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument
from ..core.text import shorten


def show_duration(value: Duration | None) -> float | None:
    """Return a duration in seconds; None for none."""
    return None if value is None else to_ms(value) / 1000


def show_timeout(value: Duration | None) -> str:
    """Return how long the server waits for a result: an hour if the caller sets no limit."""
    return "1h" if value is None else f"{to_ms(value)}ms"


def show_time(value: datetime | Duration | None) -> str | None:
    """Return a time in ISO 8601, or a duration before now in milliseconds; None for none."""
    if value is None:
        return None
    return value.isoformat() if isinstance(value, datetime) else f"{to_ms(value)}ms"


def show_moment(value: Any) -> str | None:
    """Return a datetime in ISO 8601; None for none."""
    if value is not None and not isinstance(value, datetime):
        raise BadArgument(f"at must be a datetime with a time zone, got {shorten(value)}")
    return value.isoformat() if value is not None else None
