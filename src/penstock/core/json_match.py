"""JSON containment: whether a value contains a pattern, and the index keys that find waits by pattern.

Many steps may wait for one kind of event, each for its own order. To avoid comparing an event with all of them, a wait
is indexed under one scalar of its pattern, and an event is looked up under each of its scalars.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import msgspec

from .ids import digest

log = logging.getLogger("penstock.match")
ANY = "any"
MAX_LEAVES = 500
MAX_COMPARISONS = 200_000  # of one match, which runs on the event loop
_encode = msgspec.json.Encoder().encode


def contains(value: Any, pattern: Any) -> bool:
    """Return whether a value contains a pattern: objects by key, arrays by item, scalars by equality.

    A match that takes more than MAX_COMPARISONS is none: two arrays of objects are compared item by item."""
    match = _Match()
    is_contained = match.contains(value, pattern)
    if match.left < 0:
        log.warning("no match: more than %d comparisons; use fewer objects in the arrays of a pattern", MAX_COMPARISONS)
        return False
    return is_contained


class _Match:
    """One comparison of a value with a pattern, with the number of comparisons that it may still make."""

    def __init__(self) -> None:
        self.left = MAX_COMPARISONS

    def contains(self, value: Any, pattern: Any) -> bool:
        self.left -= 1
        if self.left < 0:
            return False
        if isinstance(pattern, dict):
            return isinstance(value, dict) and all(
                key in value and self.contains(value[key], item) for key, item in pattern.items()
            )
        if isinstance(pattern, list):
            return isinstance(value, list) and self._contains_items(value, pattern)
        # True == 1 in Python, not in JSON.
        return (type(value) is type(pattern) and value == pattern) or _equal_numbers(value, pattern)

    def _contains_items(self, value: list[Any], pattern: list[Any]) -> bool:
        """Look scalars up in a set, so that only objects and arrays are compared with every item."""
        self.left -= len(value) + len(pattern)
        if self.left < 0:
            return False
        scalars = {_scalar(item) for item in pattern if isinstance(item, _SCALARS)}
        if scalars and not scalars <= {_scalar(item) for item in value if isinstance(item, _SCALARS)}:
            return False
        others = [wanted for wanted in pattern if not isinstance(wanted, _SCALARS)]
        return all(any(self.contains(item, wanted) for item in value) for wanted in others)


_SCALARS = (str, int, float, bool, type(None))


def _scalar(item: Any) -> tuple[bool, Any]:
    return isinstance(item, bool), item


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
