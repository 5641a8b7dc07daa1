"""Decode records of the store. One that cannot be read fails alone, with an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from .errors import UnreadableRecord
from .payload import unpack

T = TypeVar("T")
MAX_REASON_CHARS = 200


def read_stored(decode: Callable[[bytes], T], data: bytes, what: str, hint: str) -> T:
    """Decode a record. `what` names it in the error, and `hint` says what to do next."""
    try:
        return decode(data)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as problem:
        reason = describe_problem(problem, data)
        raise UnreadableRecord(f"{what} cannot be read: {reason}; {hint}", reason) from None


def read_or_note(data: bytes | None, what: str, problems: list[str]) -> Any:
    """Decode a JSON value for a list that must not stop. Return None for a value that cannot be read, and note why."""
    if data is None:
        return None
    try:
        return unpack(data)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as problem:
        problems.append(f"{what} cannot be read: {describe_problem(problem, data)}")
        return None


def describe_problem(problem: Exception, data: bytes) -> str:
    """Return why bytes cannot be decoded, and how many they are. The bytes may be a secret and are not shown."""
    size = len(data) if isinstance(data, bytes | str) else 0
    return f"{str(problem)[:MAX_REASON_CHARS]} ({size:,} bytes)"
