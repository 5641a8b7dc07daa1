"""What the caller typed, read strictly: the input, tags, durations."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..core.durations import MAX_DURATION_TEXT, to_ms
from ..core.errors import NotJSON
from ..core.payload import parse_json
from .errors import UsageMistake


def read_input(text: str | None, option: str = "--input") -> Any:
    """The value of --input: JSON, the JSON in a file (`@FILE`) or on standard input (`-`)."""
    if text is None:
        return None
    if text == "-":
        return parse_json(sys.stdin.buffer.read(), "the input on stdin")
    if text.startswith("@"):
        return parse_json(_file(text[1:]), f"the input in {text[1:]}")
    named = option.startswith("-")
    before = f"{option} " if named else ""
    try:
        return parse_json(text, f"the value of {option}" if named else f"the {option}")
    except NotJSON as problem:
        if _is_file(text):
            raise NotJSON(f"{problem}; to read the file of that name write {before}@{text}") from None
        if text[:1] in ("{", "[") and "Expecting" in str(problem):  # as Python's reader says of what has no quotes
            said = "names and text have double quotes, and the whole has single ones for the shell"
            raise NotJSON(f'{problem}; {said}: {before}\'{{"id": "A7"}}\'') from None
        if not text[:1].isalpha():
            raise
        raise NotJSON(f"{problem}; text has quotes of its own: {before}'\"{text}\"'") from None


def read_tags(tags: list[str] | None) -> dict[str, str]:
    """The values of --tag."""
    read: dict[str, str] = {}
    for tag in tags or ():
        name, equals, value = tag.partition("=")
        if not name or not equals:
            raise UsageMistake(f"--tag {tag}: write a name and a value, such as --tag customer=ada")
        read[name] = value
    return read


def read_delay(text: str | None, option: str = "--delay") -> str | None:
    """The value of --delay, once it is sure to be a duration."""
    if text is not None:
        try:
            to_ms(text)
        except ValueError as problem:
            raise UsageMistake(f"{option}: {problem}") from None
    return text


def read_moment(text: str | None, option: str = "--at") -> datetime | None:
    """The value of --at and the like: a time as ISO 8601 writes it; without a zone it is UTC."""
    try:
        return _with_zone(datetime.fromisoformat(text)) if text is not None else None
    except ValueError:
        raise UsageMistake(f"{option} {text}: write a time such as 2030-01-31T09:00:00+01:00") from None


def read_ago(text: str | None, option: str) -> datetime | str | None:
    """The value of --since and the like: a duration, which counts back from now, or a time."""
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
        raise UsageMistake(
            f"{option} {text}: write how long ago, such as 2h, at most {MAX_DURATION_TEXT}, "
            "or a time such as 2030-01-31T09:00"
        ) from None


def read_limit(limit: int) -> int:
    """The value of --limit."""
    if limit < 1:
        raise UsageMistake(f"--limit {limit}: give a whole number of at least 1")
    return limit


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # no path at all: too long, or with a null in it
        return False


def _file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        raise UsageMistake(f"cannot read the input file {path}: {problem.strerror}") from None


def _with_zone(moment: datetime) -> datetime:
    return moment if moment.utcoffset() is not None else moment.replace(tzinfo=UTC)
