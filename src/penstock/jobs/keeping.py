"""What is to stay of finished jobs, as people write it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ..core.durations import to_ms
from ..core.errors import BadArgument, BadDuration
from ..core.retry import RetryPolicy
from ..ports.unit import Keep, Terms

Kept = Keep | Mapping[str, Any] | str | timedelta | int
"""`0` or `False` for none, `1000` for the newest thousand, `"1d"` for an age, a mapping for both, `True` for all."""


def read_keep(value: Any, name: str) -> Keep | None:
    """A count, an age, or {"count": …, "age": …}; None leaves it to the retention settings."""
    if value is None or isinstance(value, Keep):
        return value
    if isinstance(value, bool):
        return Keep() if value else Keep(0)
    if isinstance(value, int):
        return Keep(_count(value, name, value))
    if isinstance(value, str | timedelta):
        return Keep(age_ms=_age(value, name))
    if isinstance(value, Mapping) and value and value.keys() <= {"count", "age"}:
        count, age = value.get("count"), value.get("age")
        return Keep(None if count is None else _count(count, name, value), None if age is None else _age(age, name))
    raise BadArgument(
        f'{name}={value!r}: give how many are kept (0 for none), for how long ("1d"), or {{"count": 1000, "age": "1d"}}'
    )


def read_removal(value: Any, name: str) -> Keep | None:
    """The same from BullMQ's removeOnComplete and removeOnFail: true, false, a count, or {age in seconds, count}."""
    if isinstance(value, bool):
        return read_keep(not value, name)
    if isinstance(value, Mapping):
        value = {key: item for key, item in value.items() if key != "limit"}
    return read_keep(value, name)


def _age(age: Any, name: str) -> int:
    try:
        return to_ms(age)
    except BadDuration as problem:
        raise BadDuration(f"{name}: {problem}") from None


def _count(count: Any, name: str, value: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise BadArgument(f"{name}={value!r}: a count is a whole number, 0 or more")
    return count


def terms(retry: RetryPolicy, keep_completed: Keep | None, keep_failed: Keep | None) -> Terms:
    """What other programs are told of a job."""
    backoff = retry.backoff
    return Terms(retry.attempts, backoff.type, backoff.delay_ms, backoff.jitter, keep_completed, keep_failed)
