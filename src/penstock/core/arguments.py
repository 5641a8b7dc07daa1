"""Arguments that several public calls share, and their validation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from .clock import Clock, datetime_to_ms
from .durations import Duration, to_ms
from .errors import BadArgument, PayloadError


def resolve_due(delay: Duration | None, at: datetime | None, clock: Clock) -> int:
    """Return when something is due, from `delay=` or `at=`; 0 means now."""
    if at is not None and delay is not None:
        raise BadArgument(f"pass either delay= or at=, not both; got delay={delay!r} and at={at!r}")
    if at is not None:
        due = datetime_to_ms(at)
        return due if due > clock.now_ms() else 0
    delay_ms = to_ms(delay) if delay is not None else 0
    return clock.now_ms() + delay_ms if delay_ms else 0


def check_text(value: Any, what: str) -> str | None:
    """Return the value if it is a string or None; raise otherwise."""
    if value is None or isinstance(value, str):
        return value
    raise PayloadError(f"{what} must be a string, got {value!r}")


def check_key(key: Any) -> str | None:
    """Return the idempotency key of an event, or None; raise if it is neither text nor None."""
    if check_text(key, "the key") == "":
        raise BadArgument(
            "key must be a non-empty string that identifies the event, got ''; omit it if the event needs no key"
        )
    return key  # type: ignore[no-any-return]


def check_tags(values: Mapping[str, str] | None, what: str) -> dict[str, str]:
    """Return tags as a dict of strings; raise if they are not."""
    if values is not None and not isinstance(values, Mapping):
        raise BadArgument(f"{what} must be a mapping of names to values, such as {{'customer': 'ada'}}, got {values!r}")
    for name, value in (values or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadArgument(f"{what} must have strings as names and values, got {name!r}: {value!r}")
    return dict(values or {})
