"""The options of `@flow`, `@step` and `@job`, read from what people write."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from ..core.durations import to_ms
from ..core.errors import BadArgument, BadDuration, DefinitionError
from ..core.events import KIND_PATTERN
from ..core.near_match import check_keys, did_you_mean
from ..core.options import DELAY_META, MAX_PRIORITY, Milliseconds, read_options
from ..core.schemas import UnknownFields
from ..core.text import any_of, shorten
from ..ports.unit import KeepJobs, RateLimit

MAX_KEPT_JOBS = 1_000_000_000
RUNNERS = ("inprocess", "process")  # where a handler may run; `inprocess` is the default
RunnerName = Literal["inprocess", "process"]
IdempotencyKey = str | Callable[[Any], str]
"""`"auto"` for a hash of the input, or a function of the input."""
RateOption = RateLimit | str | Mapping[str, Any]
"""`"100/1m"`, or `{"max": 100, "duration": "1m"}`."""
RateKeyOption = str | Callable[[Any], str]
"""A dotted path into the input, or a function of the input."""
OrderKeyOption = str | Callable[[Any], str | None]
"""A dotted path into the input, or a function of the input; None leaves the job without an order."""
KeepOption = KeepJobs | Mapping[str, Any] | str | timedelta | int
"""`0` or `False` for none, `1000` for the newest thousand, `"1d"` for an age, a mapping for both, `True` for all."""

D = TypeVar("D", bound=Callable[..., Any])
_Count = Annotated[int, Meta(ge=1)]


class HandlerOptions(msgspec.Struct, frozen=True):
    """The options all handlers share. Those of type Any have their own reader."""

    queue: str | None = None
    retry: Any = None
    timeout: Milliseconds | None = None
    wait: Any = None
    priority: Annotated[int, Meta(ge=0, le=MAX_PRIORITY)] | None = None
    delay: Milliseconds | None = None
    concurrency: _Count | None = None
    max_active: _Count | None = None
    call_concurrency: _Count | None = None
    rate_limit: Any = None
    rate_key: Any = None
    order_key: Any = None
    dead_letters: bool = True
    dead_letter_queue: str | None = None
    keep_completed: Any = None
    keep_failed: Any = None
    key: Any = None
    input_schema: Any = None
    output_schema: Any = None
    unknown_fields: UnknownFields | None = None
    runner: str | None = None

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> HandlerOptions:
        """Read these options from all options of a decorator or a config."""
        read = read_options(cls, {name: options[name] for name in cls.__struct_fields__ if name in options})
        if read.timeout == 0:
            raise DefinitionError("timeout must be longer than 0, got 0; omit it for no timeout")
        if read.runner is not None and read.runner not in RUNNERS:
            hint = did_you_mean(read.runner, RUNNERS) or "omit it to run the handler in the worker's own process"
            raise DefinitionError(f"runner must be {any_of(RUNNERS)}, got {shorten(read.runner)}; {hint}")
        return read


class _RateLimitOption(msgspec.Struct):
    max: _Count
    duration: Milliseconds | None = None
    duration_ms: Annotated[int, DELAY_META] | None = None
    per_key: bool = False


def read_rate_limit(limit: Any, key: Any) -> RateLimit | None:
    """Read `rate_limit` and whether it applies to each `rate_key` or to the whole queue."""
    if limit is None:
        if key is not None:
            raise DefinitionError("rate_key requires rate_limit")
        return None
    options: Any = limit
    if isinstance(limit, str):
        count, slash, span = (part.strip() for part in limit.partition("/"))
        if not slash or not count.isdecimal():
            raise DefinitionError(
                f'rate_limit must be a count, a slash and a duration, such as "100/1m", got {shorten(limit)}'
            )
        options = {"max": int(count), "duration": span if span[:1].isdigit() else f"1{span}"}
    elif isinstance(limit, RateLimit):
        options = msgspec.structs.asdict(limit)
    elif not isinstance(limit, Mapping):
        raise DefinitionError(
            'rate_limit must be a string such as "100/1m" or a mapping such as {"max": 100, "duration": "1m"}, '
            f"got {shorten(limit)}"
        )
    rate = read_options(_RateLimitOption, options, "rate_limit")
    duration_ms = rate.duration if rate.duration_ms is None else rate.duration_ms
    if not duration_ms:
        raise DefinitionError(f'rate_limit requires a duration longer than 0, such as "1m", got {shorten(limit)}')
    if rate.per_key and key is None:
        raise DefinitionError(
            "this rate_limit is per key, but rate_key is not set; set rate_key to the path of the key in the input"
        )
    return RateLimit(rate.max, int(duration_ms), per_key=key is not None)


def read_key_of_input(value: Any, name: str) -> Any:
    """Read `rate_key` or `order_key`: a path, or a plain function."""
    if value is None or isinstance(value, str) or _is_plain_function(value):
        return value
    raise DefinitionError(
        f'{name} must be a path in the input such as "customer.id", or a `def` function that takes the input, got '
        f"{_show(value)}"
    )


def read_key(value: Any) -> IdempotencyKey | None:
    """Read `key`: "auto", a path, or a plain function, because `start` and `enqueue` need the key at once."""
    if value is None or (isinstance(value, str) and value) or _is_plain_function(value):
        return value  # type: ignore[no-any-return]
    raise DefinitionError(
        'key must be "auto" (a hash of the input), a path in the input such as "order.id", or a `def` function that '
        f"takes the input and returns a string, got {_show(value)}"
    )


def _is_plain_function(value: Any) -> bool:
    return callable(value) and not inspect.iscoroutinefunction(value)


def _show(value: Any) -> str:
    return "an async function" if callable(value) else shorten(value)


def read_kinds(name: str, value: Sequence[str] | str | None, where: str | None = None) -> tuple[str, ...] | None:
    """Read event kinds: one, or several in a list."""
    if value is None:
        return None
    if isinstance(value, Mapping) or not isinstance(value, str | list | tuple | set | frozenset):
        raise DefinitionError(
            f'`{name}` must be an event kind such as "order.paid", or a list of kinds, got {shorten(value)}',
            where=where,
        )
    kinds = (value,) if isinstance(value, str) else tuple(value)
    for kind in kinds:
        if not isinstance(kind, str) or not KIND_PATTERN.fullmatch(kind):
            raise DefinitionError(
                f"`{name}` has the invalid event kind {shorten(kind)}; a kind is words of letters, digits, '_' and "
                "'-', with dots between them, such as 'order.paid'",
                where=where,
            )
    return kinds


def read_keep(value: Any, name: str) -> KeepJobs | None:
    """Read how many finished jobs to keep, and for how long; None leaves it to the retention settings."""
    if value is None or isinstance(value, KeepJobs):
        return value
    if isinstance(value, bool):
        return KeepJobs() if value else KeepJobs(0)
    if isinstance(value, int):
        return KeepJobs(_read_count(value, name, value))
    if isinstance(value, str | timedelta):
        return KeepJobs(age_ms=_read_age(value, name))
    if isinstance(value, Mapping) and value and value.keys() <= {"count", "age"}:
        count, age = value.get("count"), value.get("age")
        return KeepJobs(
            None if count is None else _read_count(count, name, value), None if age is None else _read_age(age, name)
        )
    raise BadArgument(
        f'{name} must be a number of jobs such as 1000 (0 keeps none), an age such as "1d", or both as '
        f'{{"count": 1000, "age": "1d"}}, got {shorten(value)}'
    )


def read_removal(value: Any, name: str) -> KeepJobs | None:
    """Read BullMQ's removeOnComplete or removeOnFail: true, false, a count, or {age in seconds, count}."""
    if isinstance(value, bool):
        return read_keep(not value, name)
    if isinstance(value, Mapping):
        value = {key: item for key, item in value.items() if key != "limit"}
    return read_keep(value, name)


def _read_age(age: Any, name: str) -> int:
    try:
        return to_ms(age)
    except BadDuration as problem:
        raise BadDuration(f"{name}: {problem}") from None


def _read_count(count: Any, name: str, value: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_KEPT_JOBS:
        raise BadArgument(f"{name} must have a count from 0 to {MAX_KEPT_JOBS:,}, got {shorten(value)}")
    return count


_LIKELY_OPTIONS = {"job": "queue", "step": "on"}  # what an argument without a name most likely is
_LISTENS = "only a @step starts on events of its run"
_WITHOUT_ON = {
    "flow": "app.start starts a flow; to start it with each event of a kind, use start_on=",
    "job": "app.enqueue starts a job; to run code on an event, use @step(on=…), or @flow(…, start_on=…)",
}


def check_options(decorator: D) -> D:
    """Decorate a decorator to raise DefinitionError, with file and line, where Python would raise TypeError."""
    parameters = inspect.signature(decorator).parameters.values()
    known = {parameter.name for parameter in parameters}
    leading = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    name = decorator.__name__
    example = f'@{name}("name")' if leading else f"@{name}()"

    @wraps(decorator)
    def checked(*args: Any, **options: Any) -> Any:
        frame = sys._getframe(1)
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if "on" in options and "on" not in known:
            raise DefinitionError(f"@{name} has no option 'on'; {_WITHOUT_ON.get(name, _LISTENS)}", where=where)
        check_keys(options, known, f"@{name}", where)
        if args and callable(args[0]) and not leading:
            raise DefinitionError(f"@{name} requires parentheses, as in {example}", where=where)
        if len(args) > len(leading):
            value, option = args[len(leading)], _LIKELY_OPTIONS.get(name)
            hint = (
                f"did you mean @{name}({option}={value!r})?" if option and isinstance(value, str) else f"use {example}."
            )
            raise DefinitionError(
                f"@{name} got the positional argument {shorten(value)}; {hint} Pass options as name=value", where=where
            )
        if len(args) < len(leading) and leading[0] not in options:
            raise DefinitionError(f"@{name} requires a name, as in {example}", where=where)
        return decorator(*args, **options)

    return checked  # type: ignore[return-value]
