"""Decode records of the store. One that cannot be read fails alone, with an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .errors import UnreadableRecord
from .payload import DECODE_ERRORS, describe_stored

T = TypeVar("T")
MAX_REASON_CHARS = 200


def read_stored(decode: Callable[[bytes], T], data: bytes, what: str, hint: str) -> T:
    """Decode a record. `what` names it in the error, and `hint` says what to do next."""
    try:
        return decode(data)
    except DECODE_ERRORS as problem:
        reason = describe_problem(problem, data)
        raise UnreadableRecord(f"{what} cannot be read: {reason}; {hint}", reason) from None


def describe_problem(problem: Exception, data: bytes) -> str:
    """Return why bytes cannot be decoded, and how many they are. The bytes may be a secret and are not shown."""
    return f"{str(problem)[:MAX_REASON_CHARS]} ({describe_stored(data)})"
