"""The arguments of App's methods: their types, written once, and their validation before anything is written."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from ..context.context import Context
from ..context.sync_context import SyncContext
from ..core.clock import Clock, datetime_to_ms
from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument
from ..core.near_match import did_you_mean, is_probably
from ..core.options import check_key
from ..core.text import any_of, check_text, shorten
from ..ports.unit import Dedupe

T = TypeVar("T")
MAX_PATH_CHARS = 4_000
NoInput = (
    Callable[[], T]
    | Callable[[Context], T]
    | Callable[[SyncContext], T]
    | Callable[[None], T]
    | Callable[[None, Any], T]
)
"""A flow's function that needs no input and returns T."""


class StartOptions(TypedDict, total=False):
    """The keyword arguments of `app.start`."""

    key: str | None
    correlation_id: str | None
    priority: int | None
    delay: Duration | None
    at: datetime | None
    tags: Mapping[str, str] | None
    tx: Any


class Unset:
    """The type of UNSET."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Any = Unset()
"""Stands for an argument that was not passed, where None is a value."""


def to_moment_ms(value: datetime | Duration | None, clock: Clock) -> int | None:
    """Return the milliseconds of a datetime, or of a duration before now."""
    if value is None or isinstance(value, datetime):
        return None if value is None else datetime_to_ms(value)
    return clock.now_ms() - to_ms(value)


def check_path(value: Any, what: str) -> Path:
    """Return a path, or raise BadArgument if it is neither text nor a Path."""
    if not isinstance(value, str | Path):
        raise BadArgument(f"{what} must be a path, such as 'workers/orders.py', got {shorten(value)}")
    return Path(check_text(str(value), what, MAX_PATH_CHARS))


def check_function(value: Any, what: str, expected: str) -> None:
    """Raise if the value cannot be called."""
    if not callable(value):
        raise BadArgument(f"{what} must be a function {expected}, got {_show(value)}")


def check_choice(value: str, known: Iterable[str], what: str) -> str:
    """Return the value if it is one of the known words; raise with the nearest word otherwise."""
    words = list(known)
    if isinstance(value, str) and value in words:
        return value
    if hint := did_you_mean(value, words):
        others = "" if is_probably(value, words) else f" It can be {any_of(words)}"
        raise BadArgument(f"unknown {what} {shorten(value)}; {hint}{others}")
    raise BadArgument(f"{what} must be {any_of(words)}, got {shorten(value)}")


def build_dedupe(key: Any, ttl: Duration | None) -> Dedupe | None:
    """Validate `dedupe=` and `dedupe_ttl=`."""
    if key is None:
        if ttl is not None:
            raise BadArgument(f"dedupe_ttl={shorten(ttl)} requires dedupe=")
        return None
    check_key(key, "dedupe")
    if ttl is not None and to_ms(ttl) < 1:
        raise BadArgument(
            f'dedupe_ttl must be a duration longer than 0, such as "1m", got {shorten(ttl)}; omit it to '
            "deduplicate until the job has ended"
        )
    return Dedupe(key, None if ttl is None else to_ms(ttl))


def check_list(values: Any, what: str) -> list[Any]:
    """Return an iterable as a list. Raise for a string or a mapping: it is most likely one value, not many."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise BadArgument(f"{what} must be a list, got {_show(values)}; for a single value, pass [{_show(values)}]")
    return list(values)


def _show(value: Any) -> str:
    return value.__name__ if inspect.isfunction(value) or inspect.ismodule(value) else shorten(value)
