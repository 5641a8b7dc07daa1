"""Read the values of options strictly: inputs, tags, durations, times."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from ..core.argument_checks import MAX_LIMIT
from ..core.durations import MAX_DURATION_TEXT, to_ms
from ..core.errors import NotJSON
from ..core.payload import MAX_LIFTED_BYTES, parse_json
from ..core.text import shorten
from .errors import UsageError

T = TypeVar("T", str, str | None)


def read_input(text: str | None, option: str = "--input") -> Any:
    """Read JSON from the text itself, from a file (`@FILE`) or from standard input (`-`).

    How large it may be depends on the App: here any size is read."""
    if text is None:
        return None
    if text == "-":
        return parse_json(sys.stdin.buffer.read(), "the input on stdin", MAX_LIFTED_BYTES)
    if text.startswith("@"):
        return parse_json(_read_file(text[1:]), f"the input in {text[1:]}", MAX_LIFTED_BYTES)
    is_option = option.startswith("-")
    before = f"{option} " if is_option else ""
    try:
        return parse_json(text, f"the value of {option}" if is_option else f"the {option}", MAX_LIFTED_BYTES)
    except NotJSON as problem:
        if _is_file(text):
            raise NotJSON(f"{problem}; to read the file {text}, use {before}@{text}") from None
        if text[:1] in ("{", "[") and "Expecting" in str(problem):  # Python's message for missing quotes
            hint = "put double quotes around names and text, and single quotes around the whole value"
            raise NotJSON(f'{problem}; {hint}: {before}\'{{"id": "A7"}}\'') from None
        if text[:1] in ("{", "[", '"', ""):
            raise
        raise NotJSON(
            f"{problem}; a string needs double quotes inside the single quotes: {before}'\"{text}\"'"
        ) from None


def check_positional(text: T) -> T:
    """Return an argument that may be `-`; raise for one that is most likely a misspelt option."""
    if text is not None and text != "-" and text.startswith("-"):
        raise UsageError(f"unknown option {text}")
    return text


def read_tags(tags: list[str] | None, option: str = "--tag") -> dict[str, str]:
    """Read the values of --tag or --attribute."""
    found: dict[str, str] = {}
    for tag in tags or ():
        name, equals, value = tag.partition("=")
        if not name or not equals:
            raise UsageError(f"{option} must be name=value, such as {option} customer=ada, got {shorten(tag)}")
        found[name] = value
    return found


def read_delay(text: str | None, option: str = "--delay") -> str | None:
    """Return the value of a duration option once it is known to be valid."""
    if text is not None:
        try:
            to_ms(text)
        except ValueError as problem:
            raise UsageError(f"{option}: {problem}") from None
    return text


def read_time(text: str | None, option: str = "--at") -> datetime | None:
    """Read an ISO 8601 time; without a time zone it is UTC."""
    try:
        return _with_zone(datetime.fromisoformat(text)) if text is not None else None
    except ValueError:
        raise UsageError(f"{option} must be a time such as 2030-01-31T09:00:00+01:00, got {shorten(text)}") from None


def read_ago(text: str | None, option: str) -> datetime | str | None:
    """Read a time, or a duration that counts back from now."""
    if text is None:
        return None
    try:
        to_ms(text)
        return text
    except ValueError:
        pass
    try:
        return _with_zone(datetime.fromisoformat(text))
    except ValueError:
        raise UsageError(
            f"{option} must be a duration such as 2h, at most {MAX_DURATION_TEXT}, or a time such as "
            f"2030-01-31T09:00, got {shorten(text)}"
        ) from None


def read_limit(limit: int) -> int:
    """Check the value of --limit."""
    return read_count(limit, "--limit")


def read_count(value: int, option: str, most: int = MAX_LIMIT) -> int:
    """Check the value of an option that counts something."""
    if value < 1:
        raise UsageError(f"{option} must be a whole number of at least 1, got {shorten(value)}")
    if value > most:
        raise UsageError(f"{option} must be at most {most:,}, got {shorten(value)}")
    return value


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # not a possible path: too long, or with a null in it
        return False


def _read_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        raise UsageError(f"cannot read the input file {path}: {problem.strerror}") from None


def _with_zone(time: datetime) -> datetime:
    return time if time.utcoffset() is not None else time.replace(tzinfo=UTC)
