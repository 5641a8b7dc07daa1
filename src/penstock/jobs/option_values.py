"""What decorators and configs are given for an option: read, and refused in our words."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ..core.durations import LONGEST, LONGEST_MS, to_ms
from ..core.errors import BadDuration, DefinitionError
from ..ports.unit import RateLimit

IdempotencyKey = Literal["auto"] | Callable[[Any], str]
Rate = RateLimit | str | Mapping[str, Any]
RateKey = str | Callable[[Any], str]


def read_span(name: str, value: Any) -> int | None:
    """A span of time in milliseconds, or None."""
    if value is None:
        return None
    try:
        return to_ms(value)
    except BadDuration as problem:
        raise DefinitionError(f"{name}: {problem}") from None


def read_timeout(value: Any) -> int | None:
    ms = read_span("timeout", value)
    if ms == 0:
        raise DefinitionError("timeout=0 would end every attempt at once: leave it out for none")
    return ms


def read_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise DefinitionError(f"{name}={value!r}: give True or False")
    return value


def read_positive(name: str, value: Any) -> int | None:
    if value is not None and not _is_positive(value):
        raise DefinitionError(f"{name}={value!r}: give a whole number of at least 1")
    return value  # type: ignore[no-any-return]


def read_idempotency_key(value: Any) -> IdempotencyKey | None:
    """`"auto"`, or a plain function: whoever starts something needs the key at once."""
    if value is None or value == "auto" or (callable(value) and not inspect.iscoroutinefunction(value)):
        return value  # type: ignore[no-any-return]
    shown = "an async function" if callable(value) else repr(value)
    raise DefinitionError(
        f'idempotency_key is {shown}: write "auto" (a hash of the input) or a plain function of the input that gives '
        "a text"
    )


def read_rate_key(value: Any) -> RateKey | None:
    if value is None or isinstance(value, str) or (callable(value) and not inspect.iscoroutinefunction(value)):
        return value  # type: ignore[no-any-return]
    shown = "an async function" if callable(value) else repr(value)
    raise DefinitionError(f'rate_key is {shown}: write a path in the payload ("customer.id") or a plain function of it')


def read_kinds(name: str, value: Sequence[str] | str | None, where: str | None = None) -> tuple[str, ...] | None:
    """Kinds of events: one, or several in a list."""
    if value is None:
        return None
    if isinstance(value, Mapping) or not isinstance(value, str | list | tuple | set | frozenset):
        raise DefinitionError(
            f'{name}={value!r}: give the kind of an event ("order.paid"), or a list of kinds', where=where
        )
    kinds = (value,) if isinstance(value, str) else tuple(value)
    for kind in kinds:
        if not isinstance(kind, str) or not kind:
            raise DefinitionError(
                f"{name} holds {kind!r}, which is not an event kind: write dotted words such as 'order.paid'",
                where=where,
            )
    return kinds


def read_limit(limit: Any, key: Any) -> RateLimit | None:
    """A rate limit as it holds; with a key it is one for each key."""
    rate = _rate(limit)
    if rate is None:
        if key is not None:
            raise DefinitionError("rate_key says whose limit it is, but there is no rate_limit: give both")
        return None
    for number in (rate.max, rate.duration_ms):
        if isinstance(number, bool) or not isinstance(number, int):
            raise DefinitionError(f"rate_limit={limit!r}: {number!r} is not a whole number")
    if rate.max < 1 or rate.duration_ms < 1:
        raise DefinitionError(f"rate_limit={limit!r}: nothing could ever begin; give at least 1, and a span of time")
    if rate.duration_ms > LONGEST_MS:
        raise DefinitionError(f"rate_limit={limit!r}: the span is too long: the longest duration is {LONGEST}")
    if rate.per_key and key is None:
        raise DefinitionError("rate_limit is per key, but there is no rate_key: give the key's path in the payload")
    return msgspec.structs.replace(rate, per_key=key is not None)


def _rate(value: Any) -> RateLimit | None:
    """From "100/1m", or {"max": 100, "duration": "1m", "per_key": True}, or a spec's durationMs."""
    if value is None or isinstance(value, RateLimit):
        return value
    if isinstance(value, str):
        count, slash, span = value.partition("/")
        if not slash or not count.strip().isdecimal():
            raise DefinitionError(f'rate_limit={value!r}: write "100/1m", that is a count, a slash and a duration')
        span = span.strip()
        return RateLimit(int(count), read_span("rate_limit", span if span[:1].isdigit() else f"1{span}") or 0)
    if isinstance(value, Mapping):
        known = {"max", "duration", "durationMs", "duration_ms", "per_key", "perKey"}
        check_keys(value, known, "rate_limit")
        span_ms = value.get("durationMs", value.get("duration_ms"))
        if "max" in value and (span_ms is not None or "duration" in value):
            per_key = read_flag("rate_limit's per_key", value.get("per_key", value.get("perKey", False)))
            ms = span_ms if span_ms is not None else read_span("rate_limit's duration", value["duration"]) or 0
            return RateLimit(value["max"], ms, per_key)
    raise DefinitionError(f'rate_limit={value!r}: write "100/1m" or {{"max": 100, "duration": "1m"}}')


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_keys(given: Mapping[str, Any], known: set[str], what: str, where: str | None = None) -> None:
    """Refuses unknown keys and offers the nearest known one."""
    if not isinstance(given, Mapping):
        raise DefinitionError(f"{what} is {given!r}: give a mapping of {', '.join(sorted(known))}", where=where)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), sorted(known), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            raise DefinitionError(f"{what} has the unknown key {key!r}: {hint}", where=where)
