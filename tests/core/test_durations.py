"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.durations import MAX_DURATION_MS, MAX_TEXT_CHARS, format_ms, to_ms
from penstock.core.errors import BadDuration
from penstock.core.text import shorten

UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("1m", 60_000),
        ("1h", 3_600_000),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("1.5h", 5_400_000),
        ("0.5ms", 0),
        (" 1 H 30 M ", 5_400_000),
        ("90", 90_000),
        ("2.5", 2500),
        ("0", 0),
        (0, 0),
        (2, 2000),
        (2.5, 2500),
        (0.0004, 0),
        (timedelta(hours=1, milliseconds=1), 3_600_001),
        (timedelta(microseconds=1500), 2),
        (timedelta(0), 0),
    ],
)
def test_valid_durations(value: Any, ms: int) -> None:
    assert to_ms(value) == ms
    assert type(to_ms(value)) is int


NO_DURATIONS = [
    "", " ", "soon", "1x", "h", "1h x", "1h-30m", "-1h", "1.h", ".5h", "1..5h", "1e3", "1m1", "1mms", "1,5h",
    "9" * 400 + "w",
    True, False, None, [1], {"s": 1}, b"1h", -1, -0.5, timedelta(seconds=-1),
    float("nan"), float("inf"), float("-inf"),
]  # fmt: skip


@pytest.mark.parametrize("value", NO_DURATIONS, ids=lambda value: repr(value)[:20])
def test_invalid_durations_are_refused_with_their_value(value: Any) -> None:
    with pytest.raises(ValueError, match="duration") as problem:
        to_ms(value)
    assert shorten(value) in str(problem.value)


@pytest.mark.parametrize("value", ["36525d", "36525d 0ms", MAX_DURATION_MS / 1000, timedelta(days=36_525)])
def test_the_maximum_duration_is_100_years(value: Any) -> None:
    assert to_ms(value) == MAX_DURATION_MS


@pytest.mark.parametrize("value", ["36525d1ms", "99999999d", 1e20, 10**400, 1_800_000_000_000, timedelta.max])
def test_a_longer_duration_is_refused_with_the_maximum(value: Any) -> None:
    with pytest.raises(BadDuration, match=r"is too long; the maximum is 36525d \(100 years\)") as problem:
        to_ms(value)
    assert shorten(value) in str(problem.value)


def test_a_text_that_is_too_long_is_refused_before_it_is_read() -> None:
    """Its parts would be valid. Reading them takes time for each, and a caller may send any number."""

    class Unread(str):
        def strip(self, *_: Any) -> str:
            raise AssertionError("it was read")

    parts = MAX_TEXT_CHARS // 2
    assert to_ms("1h" * parts) == parts * 3_600_000
    for text in ("1h" * (parts + 1), Unread("1h" * (parts + 1)), " " * MAX_TEXT_CHARS + "1h"):
        with pytest.raises(BadDuration, match="invalid duration"):
            to_ms(text)


def test_an_integer_too_long_to_print_is_refused() -> None:
    with pytest.raises(BadDuration, match="too long"):
        to_ms(10**5000)
    with pytest.raises(BadDuration, match="negative"):
        to_ms(-(10**5000))


@given(st.lists(st.tuples(st.integers(0, 800), st.sampled_from(list(UNITS))), min_size=1, max_size=6))
def test_parts_add_up(parts: list[tuple[int, str]]) -> None:
    assert to_ms("".join(f"{n}{unit}" for n, unit in parts)) == sum(n * UNITS[unit] for n, unit in parts)


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        ms = to_ms(text)
    except ValueError:
        return
    assert ms >= 0


@given(st.integers(0, 10**12))
def test_a_timedelta_and_seconds_agree(ms: int) -> None:
    assert to_ms(timedelta(milliseconds=ms)) == ms
    assert to_ms(f"{ms}ms") == ms


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (0.4, "0 ms"),
        (850, "850 ms"),
        (999, "999 ms"),
        (999.6, "1.0 s"),
        (1000, "1.0 s"),
        (1234, "1.2 s"),
        (59_940, "59.9 s"),
        (59_960, "1 min"),
        (60_000, "1 min"),
        (200_000, "3 min 20 s"),
        (3_599_400, "59 min 59 s"),
        (3_599_600, "1 h"),
        (7_500_000, "2 h 5 min"),
        (172_740_000, "47 h 59 min"),
        (172_800_000, "2 d"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_format_ms(ms: float, text: str) -> None:
    assert format_ms(ms) == text
