"""Arguments that several public calls share, and their validation."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar, cast

from .clock import Clock, datetime_to_ms
from .durations import Duration, to_ms
from .errors import BadArgument
from .payload import MAX_INTEGER
from .text import MAX_TEXT_CHARS, check_text, shorten

MAX_LIMIT = 1_000_000
_LONG_TEXTS = {"reason": MAX_TEXT_CHARS, "token": MAX_TEXT_CHARS}  # a token may be a URL
MAX_WORD_CHARS = 500
_NUMBERS = {"version", "expect", "old", "new"}  # the others are checked, each with its range, where they are read
C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[Any], object]


def check_arguments(facet: type[C]) -> type[C]:
    """Check the arguments of every public method of a class by their annotations, before the method is called.

    A `str` must be text that every store can hold, a `bool` True or False, an `int` named `limit` a number of rows,
    and a version a whole number. Other types are checked where they are read: durations, times, keys and JSON values.
    A method receives a `Run`, or any other subclass of `str`, as a plain string: not every encoder accepts a subclass.
    """
    for name, method in list(vars(facet).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(facet, name, _checked(method))
    return facet


def checked(method: F) -> F:
    """Check the arguments of one method, as `check_arguments` does for a class."""
    return cast(F, _checked(method))


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    parameters = list(inspect.signature(method).parameters.values())[1:]
    by_name = {one.name: found for one in parameters if (found := _find_check(one)) is not None}
    if not by_name:
        return method
    by_position = [by_name.get(one.name) for one in parameters]
    refuses_none = {one.name for one in parameters if "None" not in str(one.annotation).split(" | ")}

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        has_subclass = False
        for check_value, value in zip(by_position, args, strict=False):
            if check_value is not None:
                check_value(value)
                has_subclass = has_subclass or (type(value) is not str and isinstance(value, str))
        for name, value in kwargs.items():
            if (value is not None or name in refuses_none) and name in by_name:
                by_name[name](value)
                if type(value) is not str and isinstance(value, str):
                    kwargs[name] = str(value)
        return tuple(str(one) if isinstance(one, str) else one for one in args) if has_subclass else args

    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await method(self, *check(args, kwargs), **kwargs)

        return call_async

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *check(args, kwargs), **kwargs)

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
    if types <= {"int", "None"} and name in _NUMBERS:
        return functools.partial(_check_number, name, "None" in types)
    return functools.partial(check_count, what=name) if types == {"int"} and name == "limit" else None


def _check_word(name: str, is_optional: bool, is_text_only: bool, max_chars: int, value: Any) -> None:
    if isinstance(value, str) or (is_text_only and not (is_optional and value is None)):
        check_text(value, name, max_chars)


def _check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise BadArgument(f"{name} must be True or False, got {shorten(value)}")


def _check_number(name: str, is_optional: bool, value: Any) -> None:
    is_number = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INTEGER
    if not is_number and not (is_optional and value is None):
        raise BadArgument(f"{name} must be a whole number, got {shorten(value)}")


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
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise BadArgument(
            f"{what} must be a mapping of names to values, such as {{'customer': 'ada'}}, got {shorten(values)}"
        )
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadArgument(f"{what} must have strings as names and values, got {shorten(name)}: {shorten(value)}")
        check_text(name, f"a name in {what}")
        check_text(value, f"a value in {what}")
    return {str(name): str(value) for name, value in values.items()}
