"""Times in the format of events."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import SystemClock, datetime_to_ms, from_iso, to_iso
from penstock.core.errors import BadArgument

YEAR_1 = -62_135_596_800_000
YEAR_9999 = 253_402_300_799_999
moments = st.integers(YEAR_1, YEAR_9999)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1, "1970-01-01T00:00:00.001Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_700_000_000_000, "2023-11-14T22:13:20.000Z"),
        (1_719_667_845_123, "2024-06-29T13:30:45.123Z"),
        (YEAR_9999, "9999-12-31T23:59:59.999Z"),
        (YEAR_1, "0001-01-01T00:00:00.000Z"),
        # As JavaScript writes them.
        (YEAR_9999 + 1, "+010000-01-01T00:00:00.000Z"),
        (1_800_000_000_000_000, "+059009-09-24T08:00:00.000Z"),
        (8_640_000_000_000_000, "+275760-09-13T00:00:00.000Z"),
        (YEAR_1 - 1, "+000000-12-31T23:59:59.999Z"),
        (-62_198_755_200_000, "-000001-01-01T00:00:00.000Z"),
    ],
)
def test_iso(ms: int, text: str) -> None:
    assert to_iso(ms) == text
    assert from_iso(text) == ms


@given(moments)
def test_iso_and_back_is_exact(ms: int) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", to_iso(ms))
    assert from_iso(to_iso(ms)) == ms


@given(st.integers(-(10**30), 10**30))
def test_any_stored_time_can_be_formatted(ms: int) -> None:
    assert from_iso(to_iso(ms)) == ms


@given(moments, moments)
def test_iso_text_sorts_by_time(a: int, b: int) -> None:
    assert (to_iso(a) < to_iso(b)) == (a < b)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:00", 0),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:00.5Z", 500),
        ("1969-12-31T19:00:00.001-05:00", 1),
    ],
)
def test_times_with_other_zones_and_without(text: str, ms: int) -> None:
    assert from_iso(text) == ms


def test_an_invalid_time_is_refused() -> None:
    with pytest.raises(ValueError):
        from_iso("tomorrow")


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 1, 1)), st.integers(-14 * 60, 14 * 60))
def test_a_datetime_of_any_zone(moment: datetime, minutes: int) -> None:
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    zoned = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert datetime_to_ms(zoned) == datetime_to_ms(moment.replace(tzinfo=UTC)) - minutes * 60_000
    with pytest.raises(BadArgument, match="has no time zone"):
        datetime_to_ms(moment)


@pytest.mark.parametrize(
    "moment",
    [
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    ],
)
def test_times_out_of_range_are_refused(moment: datetime) -> None:
    with pytest.raises(BadArgument, match=r"is out of range; a time must be from 0001-.* to 9999-12-31T23:59:59\.999Z"):
        datetime_to_ms(moment)


def test_system_clock() -> None:
    before = datetime.now(UTC)
    now = SystemClock().now_ms()
    assert abs(now - datetime_to_ms(before)) < 10_000
