"""JSON containment: whether a value contains a pattern, and the index keys that find waits by pattern.

Many steps may wait for one kind of event, each for its own order. To avoid comparing an event with all of them, a wait
is indexed under one scalar of its pattern, and an event is looked up under each of its scalars.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from .ids import digest

ANY = "any"
MAX_LEAVES = 500
_encode = msgspec.json.Encoder().encode


def contains(value: Any, pattern: Any) -> bool:
    """Return whether a value contains a pattern: objects by key, arrays by item, scalars by equality."""
    if isinstance(pattern, dict):
        return isinstance(value, dict) and all(
            key in value and contains(value[key], item) for key, item in pattern.items()
        )
    if isinstance(pattern, list):
        return isinstance(value, list) and all(any(contains(item, wanted) for item in value) for wanted in pattern)
    # True == 1 in Python, not in JSON.
    return (type(value) is type(pattern) and value == pattern) or _equal_numbers(value, pattern)


def _equal_numbers(value: Any, pattern: Any) -> bool:
    numbers = (int, float)
    if isinstance(value, bool) or isinstance(pattern, bool):
        return False
    return isinstance(value, numbers) and isinstance(pattern, numbers) and value == pattern


def index_key(pattern: Any) -> str:
    """Return the key a pattern is indexed under: one of its scalars, or ANY if it has none."""
    return min((_key(path, leaf) for path, leaf in _leaves(pattern, ())), default=ANY)


def index_keys(value: Any) -> list[str] | None:
    """Return every key that a pattern the value contains may have; None, meaning all, if there are too many."""
    keys = {ANY}
    for path, leaf in _leaves(value, ()):
        keys.add(_key(path, leaf))
        if len(keys) > MAX_LEAVES:
            return None
    return sorted(keys)


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, (*path, name))
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, (*path, "[]"))
    else:
        yield path, value


def _key(path: tuple[str, ...], leaf: Any) -> str:
    if isinstance(leaf, float) and leaf.is_integer():
        leaf = int(leaf)  # 7.0 and 7 are one number
    return digest(_encode([path, leaf]))
