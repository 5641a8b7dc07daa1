"""The decision about a slot, without a store: bounds, limits, missed slots, overlaps, replaced work."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from penstock.core.errors import BadArgument, BadDuration, ConfigError
from penstock.ports.store import ScheduleRow
from penstock.ports.unit import ScheduleMove
from penstock.schedules.spec import (
    MAX_CATCH_UP_SLOTS,
    MISSED_AFTER_MS,
    BadSchedule,
    FireSlot,
    HoldSlot,
    LastSlotWork,
    ScheduleSpec,
    SkipSlot,
    Target,
    decide,
    first_slot,
    make_spec,
    next_slot,
    oldest_catch_up_slot,
    renew_schedule,
    resume_schedule,
)

MIN = 60_000
HOUR = 60 * MIN
NOON = int(datetime(2024, 1, 10, 12, tzinfo=UTC).timestamp() * 1000)
HOURLY = ScheduleSpec(every_ms=HOUR)
CRON = ScheduleSpec(cron="0 * * * *")
ONCE = ScheduleSpec(at_ms=NOON)


@pytest.mark.parametrize(
    ("spec", "after", "slot"),
    [
        (HOURLY, NOON - 1, NOON),
        (HOURLY, NOON, NOON + HOUR),
        (HOURLY, NOON + 1, NOON + HOUR),
        (CRON, NOON - 1, NOON),
        (CRON, NOON, NOON + HOUR),
        (CRON, NOON + 500, NOON + HOUR),
        (ONCE, NOON - 1, NOON),
        (ONCE, NOON, None),
        (replace(HOURLY, start_ms=NOON), NOON - 5 * HOUR, NOON),
        (replace(HOURLY, start_ms=NOON + 1), NOON - 5 * HOUR, NOON + HOUR),
        (replace(HOURLY, start_ms=NOON), NOON + HOUR, NOON + 2 * HOUR),
        (replace(CRON, start_ms=NOON), NOON - 5 * HOUR, NOON),
        (replace(HOURLY, end_ms=NOON), NOON - 1, NOON),
        (replace(HOURLY, end_ms=NOON - 1), NOON - 1, None),
        (replace(CRON, end_ms=NOON), NOON, None),
        (replace(CRON, start_ms=NOON + 1, end_ms=NOON + 2), 0, None),
        (ScheduleSpec(cron="*/20 * * * * *"), NOON, NOON + 20_000),
    ],
)
def test_the_next_slot(spec: ScheduleSpec, after: int, slot: int | None) -> None:
    assert next_slot(spec, after) == slot


@pytest.mark.parametrize(
    ("spec", "now", "last", "slot"),
    [
        (HOURLY, NOON, None, NOON + HOUR),
        (HOURLY, NOON, NOON + 3 * HOUR, NOON + 4 * HOUR),  # the clock has gone back since it fired
        (ONCE, NOON + HOUR, None, NOON),  # late, and still to happen
        (ONCE, NOON + HOUR, NOON, None),
        (ONCE, NOON + HOUR, NOON - HOUR, NOON),  # it was for another moment before
    ],
)
def test_the_first_slot(spec: ScheduleSpec, now: int, last: int | None, slot: int | None) -> None:
    assert first_slot(spec, now, last) == slot


def row(spec: ScheduleSpec, next: int | None = NOON, **fields: Any) -> ScheduleRow:
    return ScheduleRow("s", msgspec.json.encode(spec), b'{"flow":"f"}', next, **fields)


OPEN = LastSlotWork("s.1", is_open=True)
HELD_BY_WORKER = LastSlotWork("s.1", is_open=True, is_cancellable=False)
ENDED = LastSlotWork("s.1", is_open=False, ended_ms=NOON - MIN)
ALL, NONE = replace(HOURLY, catch_up="all"), replace(HOURLY, catch_up="none")


def fires(next: int | None, slot: int = NOON, replaces: str | None = None) -> FireSlot:
    return FireSlot(ScheduleMove("s", slot, next), replaces)


@pytest.mark.parametrize(
    ("spec", "late", "decision"),
    [
        (HOURLY, 0, fires(NOON + HOUR)),
        (HOURLY, 5 * HOUR + 1, fires(NOON + 6 * HOUR)),  # one makes up for all
        (CRON, 5 * HOUR + 1, fires(NOON + 6 * HOUR)),
        (ALL, 0, fires(NOON + HOUR)),
        (ALL, 5 * HOUR, fires(NOON + HOUR)),  # then the next
        (replace(CRON, catch_up="all"), 5 * HOUR, fires(NOON + HOUR)),
        (NONE, 0, fires(NOON + HOUR)),
        (NONE, MISSED_AFTER_MS, fires(NOON + HOUR)),
        (NONE, MISSED_AFTER_MS + 1, SkipSlot(NOON + HOUR, "missed")),
        (NONE, 5 * HOUR, SkipSlot(NOON + 5 * HOUR, "missed")),  # that one is not late
        (NONE, 5 * HOUR + MISSED_AFTER_MS + 1, SkipSlot(NOON + 6 * HOUR, "missed")),
        (replace(ONCE, catch_up="none"), HOUR, SkipSlot(None, "missed")),
        (ONCE, HOUR, fires(None)),
        (replace(HOURLY, end_ms=NOON), 0, fires(None)),
        (replace(ALL, end_ms=NOON + HOUR), 5 * HOUR, fires(NOON + HOUR)),
    ],
)
def test_slots_that_were_missed(spec: ScheduleSpec, late: int, decision: object) -> None:
    assert decide(spec, row(spec), NOON + late) == decision


@pytest.mark.parametrize(
    ("limit", "fired", "next"), [(1, 0, None), (2, 0, NOON + HOUR), (2, 1, None), (2, 5, None), (None, 9, NOON + HOUR)]
)
def test_the_limit_ends_a_schedule(limit: int | None, fired: int, next: int | None) -> None:
    spec = replace(HOURLY, limit=limit)
    assert decide(spec, row(spec, fired=fired), NOON) == fires(next)


@pytest.mark.parametrize(
    ("overlap", "before", "decision"),
    [
        ("allow", OPEN, fires(NOON + HOUR)),
        ("skip", OPEN, SkipSlot(NOON + HOUR, "overlap")),
        ("skip", ENDED, fires(NOON + HOUR)),
        ("skip", None, fires(NOON + HOUR)),
        ("queue", OPEN, HoldSlot("s.1")),
        ("queue", ENDED, fires(NOON + HOUR)),
        ("replace", OPEN, fires(NOON + HOUR, replaces="s.1")),
        ("replace", ENDED, fires(NOON + HOUR)),
        ("replace", HELD_BY_WORKER, HoldSlot("s.1")),
    ],
)
def test_slots_that_overlap(overlap: Any, before: LastSlotWork | None, decision: object) -> None:
    spec = replace(HOURLY, overlap=overlap)
    assert decide(spec, row(spec), NOON, before) == decision


def test_a_skipped_slot_does_not_count_for_the_limit() -> None:
    spec = replace(HOURLY, overlap="skip", limit=1)
    assert decide(spec, row(spec), NOON, OPEN) == SkipSlot(NOON + HOUR, "overlap")


def test_a_held_slot_is_not_missed() -> None:
    spec = replace(NONE, overlap="queue")
    now = NOON + HOUR // 2
    assert decide(spec, row(spec), now, LastSlotWork("s.1", False, now - MISSED_AFTER_MS)) == fires(NOON + HOUR)
    assert decide(spec, row(spec), now, LastSlotWork("s.1", False, now - MISSED_AFTER_MS - 1)) == SkipSlot(
        NOON + HOUR, "missed"
    )


@pytest.mark.parametrize("spec", [ALL, replace(CRON, catch_up="all"), ScheduleSpec(cron="0 9 * * *", catch_up="all")])
def test_oldest_catch_up_slot(spec: ScheduleSpec) -> None:
    first = next_slot(spec, NOON - 1)
    assert first is not None
    slots = [first]
    while len(slots) < MAX_CATCH_UP_SLOTS + 5:
        following = next_slot(spec, slots[-1])
        assert following is not None
        slots.append(following)
    for missed in (1, MAX_CATCH_UP_SLOTS - 1, MAX_CATCH_UP_SLOTS):
        assert oldest_catch_up_slot(spec, first, slots[missed - 1]) is None
    assert oldest_catch_up_slot(spec, first, slots[MAX_CATCH_UP_SLOTS]) == slots[1]
    assert oldest_catch_up_slot(spec, first, slots[MAX_CATCH_UP_SLOTS + 4]) == slots[5]
    assert decide(spec, row(spec, first), slots[-1], oldest=slots[5]) == SkipSlot(slots[5], "missed")


TARGET = Target(flow="f")


def made(was: ScheduleRow | None, spec: ScheduleSpec, now: int = NOON + 1) -> ScheduleRow:
    return renew_schedule(was, "s", spec, TARGET, now)


@pytest.mark.parametrize(
    ("was", "spec", "next"),
    [
        (None, HOURLY, NOON + HOUR),
        (row(HOURLY), HOURLY, NOON),  # a missed slot is not forgotten by a deploy
        (row(HOURLY), replace(HOURLY, overlap="skip", catch_up="all"), NOON),
        (row(HOURLY), replace(HOURLY, every_ms=2 * HOUR), NOON + 2 * HOUR),
        (row(HOURLY), CRON, NOON + HOUR),
        (row(HOURLY), replace(HOURLY, start_ms=NOON + 3 * HOUR), NOON + 3 * HOUR),
        (row(HOURLY), replace(HOURLY, end_ms=NOON - 1), None),
        (row(replace(HOURLY, end_ms=NOON), None, last=NOON), HOURLY, NOON + HOUR),
        (row(replace(HOURLY, limit=3), None, last=NOON, fired=3), replace(HOURLY, limit=3), None),
        (row(replace(HOURLY, limit=3), None, last=NOON, fired=3), replace(HOURLY, limit=4), NOON + HOUR),
        (row(HOURLY, fired=3), replace(HOURLY, limit=3), None),
        (row(HOURLY, last=NOON + 5 * HOUR), CRON, NOON + 6 * HOUR),
        (row(ONCE, None, last=NOON, fired=1), ONCE, None),
        (row(ONCE, None, last=NOON, fired=1), replace(ONCE, at_ms=NOON + HOUR), NOON + HOUR),
    ],
)
def test_a_schedule_that_is_replaced(was: ScheduleRow | None, spec: ScheduleSpec, next: int | None) -> None:
    found = made(was, spec)
    assert found.next == next
    if was is not None:
        assert (found.last, found.fired, found.paused) == (was.last, was.fired, was.paused)


def test_a_paused_schedule_that_is_replaced_stays_paused() -> None:
    assert made(row(HOURLY, paused=True), CRON).paused


@pytest.mark.parametrize(
    ("next", "now", "goes_on"),
    [(NOON, NOON - 1, NOON), (NOON, NOON, NOON + HOUR), (NOON, NOON + 5 * HOUR, NOON + 6 * HOUR), (None, NOON, None)],
)
def test_a_resumed_schedule_continues_with_the_next_slot(next: int | None, now: int, goes_on: int | None) -> None:
    assert resume_schedule(row(HOURLY, next, paused=True), now) == row(HOURLY, goes_on)


DAY = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "a schedule needs one of"),
        ({"every": "1h", "cron": "* * * * *"}, "a schedule needs one of"),
        ({"every": 0}, "every=0 is too frequent for a schedule; the minimum is 1s"),
        ({"every": "999ms"}, "every='999ms' is too frequent"),
        ({"every": "1h", "limit": 0}, "limit must be a whole number of at least 1, got 0"),
        ({"every": "1h", "limit": True}, "limit must be a whole number of at least 1, got True"),
        ({"every": "1h", "limit": "3"}, "limit must be a whole number of at least 1, got '3'"),
        (
            {"every": "1h", "overlap": "never"},
            "overlap must be 'allow', 'skip', 'queue' or 'replace', got 'never'",
        ),
        ({"every": "1h", "catch_up": "some"}, "catch_up must be 'one', 'all' or 'none', got 'some'"),
        ({"every": "1h", "start": DAY, "end": DAY - timedelta(days=1)}, "end=2029-12-31.* is before start=2030"),
        ({"every": "1h", "start": datetime(2030, 1, 1)}, "start=.* has no time zone"),
        ({"every": "1h", "end": datetime(2030, 1, 1)}, "end=.* has no time zone"),
        ({"at": datetime(2030, 1, 1)}, "at=.* has no time zone"),
        ({"at": DAY, "limit": 2}, "only apply to every= and cron="),
        ({"at": DAY, "start": DAY}, "only apply to every= and cron="),
        (
            {"cron": "every day"},
            "invalid cron expression 'every day': it has 2 fields instead of 5. Write minute, hour",
        ),
        ({"cron": "nonsense"}, "it has 1 field instead of 5"),
        ({"cron": 5}, "invalid cron expression 5: it must be a string"),
        ({"cron": "61 9 * * *"}, "invalid cron expression '61 9 \\* \\* \\*': its minute is invalid"),
        ({"cron": "0 0 30 2 *"}, "invalid cron expression '0 0 30 2 \\*': its day-of-month is invalid"),
        ({"cron": "* * * * *", "tz": "Mars/Olympus"}, "unknown time zone"),
        ({"cron": "* * * * *", "tz": "../etc"}, "unknown time zone"),
        ({"cron": "* * * * *", "tz": None}, "unknown time zone"),
    ],
)
def test_invalid_specs_are_refused(given: dict[str, Any], error: str) -> None:
    with pytest.raises(BadSchedule, match=error) as caught:
        make_spec(**given)
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, BadArgument)


def test_other_values_that_are_refused() -> None:
    with pytest.raises(BadDuration):
        make_spec(every="often")
    with pytest.raises(BadArgument, match="a time must be a datetime"):
        make_spec(at="tomorrow")  # type: ignore[arg-type]


NEVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize("tz", ["UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("when", [{"every": "36525d"}, {"every": "1h"}, {"cron": "0 9 * * *"}, {"cron": "0 0 29 2 *"}])
def test_there_is_no_slot_after_the_last_day_of_the_calendar(when: dict[str, Any], tz: str) -> None:
    spec = make_spec(**when, tz=tz, start=NEVER)
    assert next_slot(spec, 0) is None


def test_the_shortest_and_the_longest() -> None:
    assert make_spec(every="1s").every_ms == 1000
    assert next_slot(make_spec(every="36525d"), 1) == 36_525 * 86_400_000


def test_times_in_any_zone() -> None:
    east = timezone(timedelta(hours=5))
    assert make_spec(at=DAY.astimezone(east)).at_ms == make_spec(at=DAY).at_ms == int(DAY.timestamp() * 1000)
