"""Slots around every clock change in ten zones, checked against zoneinfo: six years, twenty in `make faults`.

The expectation is worked out here with zoneinfo alone. A fixed time (neither minute nor hour begins with `*`) is once a
day: in an hour that comes twice at its first pass, in an hour that is left out at the first minute after it. Everything
else goes by the clock on the wall: each minute there is, in both passes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from penstock.schedules.spec import ScheduleSpec, next_slot

ZONES = (
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "America/Los_Angeles",
    "America/St_Johns",  # half an hour off
    "America/Santiago",  # at midnight
    "America/Havana",  # at midnight, and the hour before it comes twice
    "Africa/Casablanca",  # around Ramadan
    "Australia/Lord_Howe",  # by half an hour
    "Asia/Beirut",  # at midnight
)
FIXED = {
    "30 2 * * *": ([30], [2]),
    "0 0 * * *": ([0], [0]),
    "15,45 1,2 * * *": ([15, 45], [1, 2]),
    "0 1-3 * * *": ([0], [1, 2, 3]),
    "30 0,23 * * *": ([30], [0, 23]),
    "0 9 * * *": ([0], [9]),
}
RUNNING = {
    "0 * * * *": ([0], range(24)),
    "*/15 * * * *": ([0, 15, 30, 45], range(24)),
    "*/30 1,2 * * *": ([0, 30], [1, 2]),
    "45 */2 * * *": ([45], range(0, 24, 2)),
}
MINUTE = timedelta(minutes=1)
YEARS = range(2015, 2035 if os.environ.get("PENSTOCK_FAULTS") == "full" else 2021)


def changes(zone: ZoneInfo) -> Iterator[datetime]:
    """Return the minutes, in UTC, at which the offset changes."""
    hour = timedelta(hours=1)
    moment = datetime(YEARS.start, 1, 1, tzinfo=UTC)
    offset = moment.astimezone(zone).utcoffset()
    while moment.year in YEARS:
        following = moment + hour * 6
        if following.astimezone(zone).utcoffset() != offset:
            while moment.astimezone(zone).utcoffset() == offset:
                moment += MINUTE
            offset = moment.astimezone(zone).utcoffset()
            yield moment
        else:
            moment = following


def is_there(moment: datetime) -> bool:
    return moment.astimezone(UTC).astimezone(moment.tzinfo).replace(tzinfo=None) == moment.replace(tzinfo=None)


def fixed(zone: ZoneInfo, begin: datetime, end: datetime, minutes: list[int], hours: list[int]) -> set[datetime]:
    found: set[datetime] = set()
    day = begin.astimezone(zone).date() - timedelta(days=1)
    while day <= end.astimezone(zone).date() + timedelta(days=1):
        for hour in hours:
            for minute in minutes:
                naive = datetime(day.year, day.month, day.day, hour, minute)
                while not is_there(naive.replace(tzinfo=zone)):
                    naive += MINUTE
                found.add(naive.replace(tzinfo=zone, fold=0).astimezone(UTC))
        day += timedelta(days=1)
    return {moment for moment in found if begin < moment <= end}


def running(quarters: list[datetime], zone: ZoneInfo, minutes: list[int], hours: range | list[int]) -> set[datetime]:
    local = [(moment, moment.astimezone(zone)) for moment in quarters]
    return {moment for moment, there in local if there.minute in minutes and there.hour in hours}


def slots(cron: str, tz: str, begin: datetime, end: datetime) -> list[datetime]:
    spec, found = ScheduleSpec(cron=cron, tz=tz), []
    at = next_slot(spec, round(begin.timestamp() * 1000))
    while at is not None and (moment := datetime.fromtimestamp(at / 1000, UTC)) <= end:
        found.append(moment)
        at = next_slot(spec, at)
    return found


@pytest.mark.parametrize("tz", ZONES)
def test_slots_around_every_clock_change(tz: str) -> None:
    zone = ZoneInfo(tz)
    found = list(changes(zone))
    assert len(found) >= len(YEARS) * 3 / 4  # some have given it up since
    for change in found:
        begin, end = change - timedelta(hours=36), change + timedelta(hours=36)
        quarters = [begin + timedelta(minutes=15 * n) for n in range(1, 4 * 72 + 1)]
        for cron, (minutes, hours) in FIXED.items():
            assert slots(cron, tz, begin, end) == sorted(fixed(zone, begin, end, minutes, hours)), (cron, change)
        for cron, (minutes, some_hours) in RUNNING.items():
            expected = sorted(running(quarters, zone, minutes, some_hours))
            assert slots(cron, tz, begin, end) == expected, (cron, change)


@pytest.mark.parametrize("tz", ZONES)
def test_the_next_slot_is_always_later(tz: str) -> None:
    """Also in the second pass of an hour, where the first pass of a fixed time is over."""
    zone = ZoneInfo(tz)
    for change in list(changes(zone))[:6]:
        for cron in (*FIXED, *RUNNING):
            begin, end = change - timedelta(hours=3), change + timedelta(days=2)
            expected = slots(cron, tz, begin, end)
            for n in range(0, 6 * 60, 5):
                asked = begin + timedelta(minutes=n)
                slot = next_slot(ScheduleSpec(cron=cron, tz=tz), round(asked.timestamp() * 1000))
                assert slot == round(next(moment for moment in expected if moment > asked).timestamp() * 1000)


def test_a_fixed_time_in_a_repeated_hour_fires_once() -> None:
    zone = ZoneInfo("America/New_York")
    day = datetime(2024, 11, 3, tzinfo=zone)
    found = slots("30 1 * * *", "America/New_York", day, day + timedelta(days=1))
    assert found == [datetime(2024, 11, 3, 5, 30, tzinfo=UTC)]
