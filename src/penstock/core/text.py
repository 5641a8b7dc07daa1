"""Text from outside: check it once at the door, shorten it in messages, escape it for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from .errors import BadArgument

MAX_SHOWN_CHARS = 80
MAX_TEXT_CHARS = 2_000
# C0, DEL and C1 controls, line and paragraph separators, marks and overrides of the text direction, lone surrogates.
_CONTROLS = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL = re.compile(f"[{_CONTROLS}]")
_CONTROL_IN_LINES = re.compile(f"(?![\\n\\t])[{_CONTROLS}]")


def shorten(value: Any, max_chars: int = MAX_SHOWN_CHARS) -> str:
    """Return a value as it is written in code, for a message; a long one is cut at the end."""
    try:
        # A text is cut first: no message needs the repr of a megabyte.
        shown = repr(value[: max_chars + 1] if isinstance(value, str | bytes) else value)
    except RecursionError:
        shown = f"a deeply nested {type(value).__name__}"
    except Exception:  # Python formats no number of more than 4300 digits; other classes may have a broken __repr__
        is_number = isinstance(value, int)
        shown = "a number of thousands of digits" if is_number else f"a {type(value).__name__} that cannot be shown"
    # A `__repr__` may return anything, and a message is one line.
    shown = escape_line(shown)
    return shown if len(shown) <= max_chars else f"{shown[:max_chars]}…"


def any_of(words: Iterable[object]) -> str:
    """Return the words as a message lists them: `'a', 'b' or 'c'`."""
    *first, last = map(repr, words)
    return f"{', '.join(first)} or {last}" if first else last


def to_text(value: object) -> str:
    """Return a value as text, also if it has none of its own."""
    try:
        return str(value)
    except Exception:  # a deeply nested value, a number of thousands of digits, a broken `__str__`
        return shorten(value)


def check_text(value: Any, what: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Return the value if it is text that every store can hold; raise BadArgument with the argument's name if not."""
    if not isinstance(value, str):
        raise BadArgument(f"{what} must be a string, got {shorten(value)}")
    if len(value) > max_chars:
        raise BadArgument(f"{what} must have at most {max_chars:,} characters, got {len(value):,}: {shorten(value)}")
    if "\0" in value:
        raise BadArgument(
            f"{what} must not contain a NUL character, which not every store can hold, got {shorten(value)}"
        )
    if not value.isascii() and has_lone_surrogate(value):
        raise BadArgument(f"{what} must be valid text, got a lone surrogate in {shorten(value)}")
    return str(value)  # a plain string, also for a subclass of str


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text has no form in UTF-8: a half of a pair of surrogates stands alone in it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def escape_line(text: str) -> str:
    """Return text for one line of a terminal: control characters are shown as `\\x1b`, a line feed as `\\n`."""
    return text if text.isprintable() else _CONTROL.sub(_escape, text)


def escape_lines(text: str) -> str:
    """Return text for a terminal. Line feeds and tabs are kept; other control characters are shown as `\\x1b`."""
    return text if text.isprintable() else _CONTROL_IN_LINES.sub(_escape, text)


def escape_json(text: str) -> str:
    """Return JSON in which no control character stands for itself. It has the same value."""
    return text if text.isprintable() else _CONTROL_IN_LINES.sub(_escape_in_json, text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _escape_in_json(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def pluralize(count: int, noun: str) -> str:
    """Return `1 flow`, `2 flows`."""
    return f"{count} {noun}{'s' * (count != 1)}"
