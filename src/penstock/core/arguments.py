"""Arguments that several public calls share, and their validation."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from .clock import Clock, datetime_to_ms
from .durations import Duration, to_ms
from .errors import BadArgument
from .text import MAX_TEXT_CHARS, check_text, shorten

MAX_LIMIT = 1_000_000
_LONG_TEXTS = {"reason": MAX_TEXT_CHARS, "token": MAX_TEXT_CHARS}  # a token may be a URL
MAX_WORD_CHARS = 500
C = TypeVar("C")
Check = Callable[[Any], object]


def check_arguments(facet: type[C]) -> type[C]:
    """Check the arguments of every public method of a class by their annotations, before the method is called.

    A `str` must be text that every store can hold, a `bool` True or False, and an `int` named `limit` a number of rows.
    Other types are checked where they are read: durations, times, keys and JSON values.
    """
    for name, method in list(vars(facet).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(facet, name, _checked(method))
    return facet


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    parameters = list(inspect.signature(method).parameters.values())[1:]
    by_name = {one.name: found for one in parameters if (found := _find_check(one)) is not None}
    if not by_name:
        return method
    by_position = [by_name.get(one.name) for one in parameters]

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for check_value, value in zip(by_position, args, strict=False):
            if check_value is not None:
                check_value(value)
        for name, value in kwargs.items():
            if name in by_name:
                by_name[name](value)

    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return await method(self, *args, **kwargs)

        return call_async

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        check(args, kwargs)
        return method(self, *args, **kwargs)

    return call


def _find_check(parameter: inspect.Parameter) -> Check | None:
    name, types = parameter.name, set(str(parameter.annotation).split(" | "))
    if "str" in types:
        is_text_only = types <= {"str", "None"}
        return functools.partial(
            _check_word, name, "None" in types, is_text_only, _LONG_TEXTS.get(name, MAX_WORD_CHARS)
        )
    if types == {"bool"}:
        return functools.partial(_check_bool, name)
    return functools.partial(check_count, what=name) if types == {"int"} and name == "limit" else None


def _check_word(name: str, is_optional: bool, is_text_only: bool, max_chars: int, value: Any) -> None:
    if isinstance(value, str) or (is_text_only and not (is_optional and value is None)):
        check_text(value, name, max_chars)


def _check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise BadArgument(f"{name} must be True or False, got {shorten(value)}")


def check_count(value: Any, what: str = "limit") -> int:
    """Return the value if it is a whole number from 1 to MAX_LIMIT; raise otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadArgument(f"{what} must be a whole number of at least 1, got {shorten(value)}")
    if value > MAX_LIMIT:
        raise BadArgument(f"{what} must be at most {MAX_LIMIT:,}, got {shorten(value)}")
    return value


def resolve_due(delay: Duration | None, at: datetime | None, clock: Clock) -> int:
    """Return when something is due, from `delay=` or `at=`; 0 means now."""
    if at is not None and delay is not None:
        raise BadArgument(f"pass either delay= or at=, not both; got delay={shorten(delay)} and at={shorten(at)}")
    if at is not None:
        due = datetime_to_ms(at)
        return due if due > clock.now_ms() else 0
    delay_ms = to_ms(delay) if delay is not None else 0
    return clock.now_ms() + delay_ms if delay_ms else 0


def check_optional_text(value: Any, what: str) -> str | None:
    """Return the value if it is text or None; raise otherwise."""
    return None if value is None else check_text(value, what, MAX_WORD_CHARS)


def check_event_key(key: Any) -> str | None:
    """Return the idempotency key of an event, or None; raise if it is neither text nor None."""
    if check_optional_text(key, "the key") == "":
        raise BadArgument(
            "key must be a non-empty string that identifies the event, got ''; omit it if the event needs no key"
        )
    return key  # type: ignore[no-any-return]


def check_tags(values: Mapping[str, str] | None, what: str) -> dict[str, str]:
    """Return tags as a dict of strings; raise if they are not."""
    if values is not None and not isinstance(values, Mapping):
        raise BadArgument(
            f"{what} must be a mapping of names to values, such as {{'customer': 'ada'}}, got {shorten(values)}"
        )
    for name, value in (values or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadArgument(f"{what} must have strings as names and values, got {shorten(name)}: {shorten(value)}")
        check_text(name, f"a name in {what}")
        check_text(value, f"a value in {what}")
    return dict(values or {})
