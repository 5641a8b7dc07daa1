"""Text from outside is checked, shortened and escaped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import BadArgument
from penstock.core.text import MAX_SHOWN_CHARS, check_text, escape_json, escape_line, escape_lines, shorten

CONTROLS = "\x00\x07\x1b\r\x7f\x85\x9b\u061c\u200f\u2028\u202e\u2066\ud800"


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError


class Red:
    def __repr__(self) -> str:
        return "\x1b[31mred"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (5, "5"),
        ("ada", "'ada'"),
        ("\x1b\u202e\ud800", r"'\x1b\u202e\ud800'"),
        (10**5000, "a number of thousands of digits"),
        (Broken(), "a Broken that cannot be shown"),
        (Red(), r"\x1b[31mred"),
        ("x" * 10**6, "'" + "x" * (MAX_SHOWN_CHARS - 1) + "…"),
        ([1] * 1000, str([1] * 1000)[:MAX_SHOWN_CHARS] + "…"),
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_values_are_shortened(value: Any, shown: str) -> None:
    assert shorten(value) == shown


def test_a_deep_value_is_shortened() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    assert shorten(value) == "a deeply nested list"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "key must be a string, got 5"),
        (None, "key must be a string, got None"),
        (b"x", "key must be a string, got b'x'"),
        ("a\0b", r"key must not contain a NUL character, which not every store can hold, got 'a\\x00b'"),
        ("\ud800", r"key must be valid text, got a lone surrogate in '\\ud800'"),
        ("é" * 21, "key must have at most 20 characters, got 21: 'é"),
    ],
)
def test_text_that_a_store_cannot_hold_is_refused(value: Any, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        check_text(value, "key", 20)


@pytest.mark.parametrize("value", ["", "a", "é" * 20, "a\nb", "\x1b", "😀"])
def test_other_text_is_accepted(value: str) -> None:
    assert check_text(value, "key", 20) == value


@pytest.mark.parametrize("control", CONTROLS, ids=ascii)
def test_control_characters_are_escaped(control: str) -> None:
    escaped = control.encode("unicode_escape").decode()
    assert escape_line(f"é{control}x") == escape_lines(f"é{control}x") == f"é{escaped}x"


def test_lines_stay_lines() -> None:
    assert escape_line("a\tb\nc") == r"a\tb\nc"
    assert escape_lines("a\tb\nc\x1b") == "a\tb\nc\\x1b"


@given(st.text())
def test_escaped_json_has_the_same_value(text: str) -> None:
    escaped = escape_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(escaped) == text
    assert escape_line(escaped) == escaped
