"""Validation of the arguments of App's methods, before anything is written."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ..core.clock import Clock, datetime_to_ms
from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument, PayloadError
from ..core.near_match import did_you_mean
from ..ports.unit import Dedupe

MAX_KEY = 200


def delay_ms(delay: Duration | None, at: datetime | None, clock: Clock) -> int:
    """Return the delay until something is due, from `delay=` or `at=`."""
    if at is not None and delay is not None:
        raise BadArgument(f"delay={delay!r} and at={at!r}: give one of them")
    if at is not None:
        return max(datetime_to_ms(at) - clock.now_ms(), 0)
    return to_ms(delay) if delay is not None else 0


def text(value: Any, what: str) -> str | None:
    """The text itself, or None."""
    if value is None or isinstance(value, str):
        return value
    raise PayloadError(f"{what} is {value!r}, a {type(value).__name__}: give a string")


def a_name(value: Any, what: str, meant: str) -> str:
    """A text that names something."""
    if not isinstance(value, str):
        raise BadArgument(f"{what}={_short(value)}: give {meant} as a text")
    return value


def a_function(value: Any, what: str, meant: str) -> None:
    """Something that can be called."""
    if not callable(value):
        raise BadArgument(f"{what}={_short(value)}: give a function {meant}")


def texts(values: Mapping[str, str] | None, what: str) -> dict[str, str]:
    """Names and values that are text."""
    if values is not None and not isinstance(values, Mapping):
        raise BadArgument(f"{what}={values!r}: give names and their values, such as {{'customer': 'ada'}}")
    for name, value in (values or {}).items():
        text(name, f"a name in {what}")
        text(value, f"{what} {name!r}")
    return dict(values or {})


def count(value: Any, what: str = "limit") -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadArgument(f"{what}={value!r}: give a whole number of at least 1")
    return value


def one_of(value: str, known: Iterable[str], what: str) -> str:
    """One of some words; a word near it is named."""
    words = list(known)
    if value in words:
        return value
    raise BadArgument(f"{what}={value!r}: {did_you_mean(value, words) or 'write one of ' + ', '.join(words)}")


def dedupe_key(key: Any, ttl: Duration | None) -> Dedupe | None:
    """The key by which jobs stand for each other, and for how long."""
    if key is None:
        if ttl is not None:
            raise BadArgument(f"dedupe_ttl={ttl!r} says for how long a key is held, but there is none: give dedupe too")
        return None
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY or not key.isprintable():
        raise BadArgument(f"dedupe={_short(key)}: give a text of 1 to {MAX_KEY} characters that can be printed")
    if ttl is not None and to_ms(ttl) < 1:
        raise BadArgument(f'dedupe_ttl={ttl!r}: give a time such as "1m", or leave it out: until the job has ended')
    return Dedupe(key, None if ttl is None else to_ms(ttl))


def several(values: Any, what: str) -> list[Any]:
    """Many values: a list, a tuple, a range, a generator. Text or an object is one value, most likely by mistake."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise BadArgument(f"{what} is {_short(values)}, one value: give a list of them, [{_short(values)}]")
    return list(values)


def _short(value: Any) -> str:
    shown = value.__name__ if inspect.isfunction(value) or inspect.ismodule(value) else repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
