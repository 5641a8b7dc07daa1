"""What decorators and configs are given for an option: read, and refused in our words."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, Literal, TypeVar

import msgspec

from ..core.durations import MAX_DURATION_MS, MAX_DURATION_TEXT, to_ms
from ..core.errors import BadArgument, BadDuration, DefinitionError
from ..core.near_match import check_keys
from ..core.retry import RetryPolicy
from ..ports.unit import KeepJobs, PublishedOptions, RateLimit

IdempotencyKey = Literal["auto"] | Callable[[Any], str]
RateOption = RateLimit | str | Mapping[str, Any]
RateKeyOption = str | Callable[[Any], str]


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
        f'key is {shown}: write "auto" (a hash of the input) or a plain function of the input that gives a text'
    )


def read_rate_key(value: Any) -> RateKeyOption | None:
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
    if rate.duration_ms > MAX_DURATION_MS:
        raise DefinitionError(
            f"rate_limit={limit!r}: the span is too long: the maximum duration is {MAX_DURATION_TEXT}"
        )
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


D = TypeVar("D", bound=Callable[..., Any])


def check_options(decorator: D) -> D:
    """The same decorator, whose DefinitionError has the line it stands at where Python would raise a TypeError."""
    parameters = inspect.signature(decorator).parameters.values()
    known = {parameter.name for parameter in parameters}
    leading = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    name = decorator.__name__
    usual = f'@{name}("name")' if leading else f"@{name}()"

    @wraps(decorator)
    def checked(*args: Any, **options: Any) -> Any:
        frame = sys._getframe(1)
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        check_keys(options, known, f"@{name}", where)
        if args and callable(args[0]) and not leading:
            raise DefinitionError(f"@{name} stands without parentheses: write {usual}", where=where)
        if len(args) > len(leading):
            raise DefinitionError(
                f"@{name} is given {args[len(leading)]!r} without its name: write {usual}, and options as name=value",
                where=where,
            )
        if len(args) < len(leading) and leading[0] not in options:
            raise DefinitionError(f"@{name} is given no name: write {usual}", where=where)
        return decorator(*args, **options)

    return checked  # type: ignore[return-value]


KeepOption = KeepJobs | Mapping[str, Any] | str | timedelta | int
"""`0` or `False` for none, `1000` for the newest thousand, `"1d"` for an age, a mapping for both, `True` for all."""


def read_keep(value: Any, name: str) -> KeepJobs | None:
    """A count, an age, or {"count": …, "age": …}; None leaves it to the retention settings."""
    if value is None or isinstance(value, KeepJobs):
        return value
    if isinstance(value, bool):
        return KeepJobs() if value else KeepJobs(0)
    if isinstance(value, int):
        return KeepJobs(_count(value, name, value))
    if isinstance(value, str | timedelta):
        return KeepJobs(age_ms=_age(value, name))
    if isinstance(value, Mapping) and value and value.keys() <= {"count", "age"}:
        count, age = value.get("count"), value.get("age")
        return KeepJobs(None if count is None else _count(count, name, value), None if age is None else _age(age, name))
    raise BadArgument(
        f'{name}={value!r}: give how many are kept (0 for none), for how long ("1d"), or {{"count": 1000, "age": "1d"}}'
    )


def read_removal(value: Any, name: str) -> KeepJobs | None:
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


def build_published_options(
    retry: RetryPolicy, keep_completed: KeepJobs | None, keep_failed: KeepJobs | None
) -> PublishedOptions:
    """What other programs are told of a job."""
    backoff = retry.backoff
    return PublishedOptions(retry.attempts, backoff.type, backoff.delay_ms, backoff.jitter, keep_completed, keep_failed)
