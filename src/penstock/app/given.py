"""What callers give besides payloads, checked at the door: one bad word makes a whole record unreadable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import PayloadError


def text(value: Any, what: str) -> str | None:
    """The text itself, or None."""
    if value is None or isinstance(value, str):
        return value
    raise PayloadError(f"{what} is {value!r}, a {type(value).__name__}: give a string")


def texts(values: Mapping[str, str] | None, what: str) -> dict[str, str]:
    """Names and values that are text."""
    for name, value in (values or {}).items():
        text(name, f"a name in {what}")
        text(value, f"{what} {name!r}")
    return dict(values or {})
