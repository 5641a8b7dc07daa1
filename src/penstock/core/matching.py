"""JSON containment: whether a value holds everything a pattern asks for."""

from __future__ import annotations

from typing import Any


def contains(value: Any, pattern: Any) -> bool:
    """Objects contain their sub-objects, arrays contain each of the pattern's items, scalars are equal."""
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
