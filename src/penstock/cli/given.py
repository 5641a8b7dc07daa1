"""What the caller typed, read strictly: the input, tags, durations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ..core.durations import to_ms
from ..core.errors import NotJSON
from ..core.payload import parse
from .mistakes import UsageMistake


def read_input(text: str | None) -> Any:
    """The value of --input: JSON, the JSON in a file (`@FILE`) or on standard input (`-`)."""
    if text is None:
        return None
    if text == "-":
        return parse(sys.stdin.buffer.read(), "the input on stdin")
    if text.startswith("@"):
        return parse(_file(text[1:]), f"the input in {text[1:]}")
    try:
        return parse(text, "the value of --input")
    except NotJSON as problem:
        if not text[:1].isalpha():
            raise
        raise NotJSON(f"{problem}; text has quotes of its own: --input '\"{text}\"'") from None


def read_tags(tags: list[str] | None) -> dict[str, str]:
    """The values of --tag."""
    read: dict[str, str] = {}
    for tag in tags or ():
        name, equals, value = tag.partition("=")
        if not name or not equals:
            raise UsageMistake(f"--tag {tag}: write a name and a value, such as --tag customer=ada")
        read[name] = value
    return read


def read_delay(text: str | None) -> str | None:
    """The value of --delay, once it is sure to be a duration."""
    if text is not None:
        try:
            to_ms(text)
        except ValueError as problem:
            raise UsageMistake(f"--delay: {problem}") from None
    return text


def _file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        raise UsageMistake(f"cannot read the input file {path}: {problem.strerror}") from None
