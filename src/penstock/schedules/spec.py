"""Schedules as values: their times, their targets, and the decision about a slot that is due. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from ..core.argument_checks import check_count
from ..core.clock import MAX_TIME_MS, datetime_to_ms, to_iso
from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument, ConfigError, UnreadableRecord
from ..core.stored import read_stored
from ..core.text import any_of, pluralize, shorten
from ..ports.store import ScheduleRow
from ..ports.unit import ScheduleMove

Overlap = Literal["allow", "skip", "queue", "replace"]
CatchUp = Literal["one", "all", "none"]

MIN_INTERVAL_MS = 1000  # cron's shortest interval: each slot costs a commit
MAX_CATCH_UP_SLOTS = 1000  # maximum number of missed slots that catch_up="all" fires, the newest ones
MISSED_AFTER_MS = 60_000  # a slot older than this counts as missed for catch_up="none"
CODE_ORIGIN = "code"  # the origin of a schedule that a decorator or a worker file declares


class BadSchedule(ConfigError, BadArgument):
    """A schedule is invalid."""

    code = "bad_schedule"


class ScheduleSpec(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """When a schedule fires: at an interval, by a cron expression in a time zone, or once; and its policies."""

    every_ms: int | None = None
    cron: str | None = None
    tz: str = "UTC"
    at_ms: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    limit: int | None = None
    overlap: Overlap = "allow"
    catch_up: CatchUp = "one"
    origin: str | None = None

    @property
    def times(self) -> tuple[object, ...]:
        """The fields that determine its slots. Changing other fields keeps the next slot."""
        return self.every_ms, self.cron, self.tz, self.at_ms, self.start_ms


class Target(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a schedule starts: a flow, or a job in a queue."""

    flow: str | None = None
    queue: str | None = None
    name: str | None = None
    input: Any = None
    priority: int | None = None
    order_key: str | None = None


_spec_decoder = msgspec.json.Decoder(ScheduleSpec)
_target_decoder = msgspec.json.Decoder(Target)


def decode_spec(row: ScheduleRow) -> ScheduleSpec:
    """Decode when a schedule fires. Raise UnreadableRecord if that is damaged."""
    return read_stored(_read_spec, row.spec, f"the times of schedule {row.id!r}", _hint(row))


def _read_spec(data: bytes) -> ScheduleSpec:
    spec = _spec_decoder.decode(data)
    if sum(one is not None for one in (spec.every_ms, spec.cron, spec.at_ms)) != 1:
        raise ValueError("it must have one of cron, every or at, and only one")
    if spec.every_ms is not None and spec.every_ms < MIN_INTERVAL_MS:
        raise ValueError(f"its interval is {spec.every_ms} ms")
    return spec


def decode_target(row: ScheduleRow) -> Target:
    """Decode what a schedule starts. Raise UnreadableRecord if that is damaged."""
    return read_stored(_target_decoder.decode, row.target, f"the target of schedule {row.id!r}", _hint(row))


def _hint(row: ScheduleRow) -> str:
    return f"add the schedule again, or remove it: `penstock schedules remove {row.id}`"


# Validation


def make_spec(
    *,
    every: Duration | None = None,
    cron: str | None = None,
    tz: str = "UTC",
    at: datetime | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    limit: int | None = None,
    overlap: str = "allow",
    catch_up: str = "one",
    origin: str | None = None,
) -> ScheduleSpec:
    """Build a spec, or raise BadSchedule with the value that is wrong and what to write instead."""
    given = [name for name, value in (("every", every), ("cron", cron), ("at", at)) if value is not None]
    if len(given) != 1:
        passed = " and ".join(given) or "none of them"
        raise BadSchedule(
            f"a schedule needs one of cron='0 9 * * *', every='5m' or at=<datetime>, and only one; got {passed}"
        )
    every_ms = to_ms(every) if every is not None else None
    if every_ms is not None and every_ms < MIN_INTERVAL_MS:
        raise BadSchedule(f"every={shorten(every)} is too frequent for a schedule; the minimum is 1s")
    if at is not None and not (start is None and end is None and limit is None):
        raise BadSchedule("start=, end= and limit= only apply to every= and cron=; at= fires once")
    try:
        limit = None if limit is None else check_count(limit)
    except BadArgument as problem:
        raise BadSchedule(f"{problem}; omit it for no limit") from None
    _check_word("overlap", overlap, ("allow", "skip", "queue", "replace"))
    _check_word("catch_up", catch_up, ("one", "all", "none"))
    at_ms, start_ms, end_ms = _read_time(at, "at"), _read_time(start, "start"), _read_time(end, "end")
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        raise BadSchedule(f"end={to_iso(end_ms)} is before start={to_iso(start_ms)}, so the schedule would never fire")
    zone = _read_zone(tz)
    if cron is not None:
        _check_cron(cron, zone)
    return ScheduleSpec(every_ms, cron, tz, at_ms, start_ms, end_ms, limit, overlap, catch_up, origin)  # type: ignore[arg-type]


def _check_word(name: str, value: object, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        raise BadSchedule(f"{name} must be {any_of(known)}, got {shorten(value)}")


def _read_time(time: datetime | None, name: str) -> int | None:
    if time is None:
        return None
    if isinstance(time, datetime) and time.utcoffset() is None:
        raise BadSchedule(
            f"{name}={shorten(time)} has no time zone; use datetime(…, tzinfo=UTC) or tzinfo=ZoneInfo('Europe/Berlin')"
        )
    return datetime_to_ms(time)


def _read_zone(tz: str) -> ZoneInfo:
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise BadSchedule(f"unknown time zone {shorten(tz)}; use one such as 'Europe/Berlin'") from None


def _describe(cron: object, problem: Exception) -> str:
    """Return what is wrong with a cron expression, in words of our own."""
    if not isinstance(cron, str):
        return "it must be a string"
    part = str(problem).removeprefix("Bad ")
    fields = pluralize(len(cron.split()), "field")
    return f"it has {fields} instead of 5" if part == str(problem) else f"its {part} is invalid"


def _check_cron(cron: str, zone: ZoneInfo) -> None:
    try:
        next(CronSim(cron, datetime(2024, 1, 1, tzinfo=zone)))
    except (CronSimError, AttributeError, ValueError) as problem:
        raise BadSchedule(
            f"invalid cron expression {shorten(cron)}: {_describe(cron, problem)}. Write minute, hour, day of month, "
            "month and day of week; for example, '0 9 * * 1-5' is 9:00 from Monday to Friday"
        ) from None
    except StopIteration:
        raise BadSchedule(
            f"cron expression {shorten(cron)} never fires; no day in the next 50 years matches it"
        ) from None


# Slots


def next_slot(spec: ScheduleSpec, after_ms: int) -> int | None:
    """Return the first slot after a time, or None if there is none."""
    if spec.start_ms is not None:
        after_ms = max(after_ms, spec.start_ms - 1)
    slot = _raw_slot(spec, after_ms)
    end = MAX_TIME_MS if spec.end_ms is None else spec.end_ms
    return None if slot is None or slot > end else slot


def _raw_slot(spec: ScheduleSpec, after_ms: int) -> int | None:
    if spec.at_ms is not None:
        return spec.at_ms if spec.at_ms > after_ms else None
    if spec.every_ms is not None:
        # Slots are multiples of the interval since the epoch, so every scheduler computes the same ones.
        return (after_ms // spec.every_ms + 1) * spec.every_ms
    assert spec.cron is not None
    try:
        for found in CronSim(spec.cron, _local(after_ms, spec.tz)):
            slot = _ms(found)
            # When an hour repeats, cronsim knows its first pass only: called in the second, it returns earlier slots.
            if slot > after_ms:
                return slot
    except (OverflowError, ValueError):
        pass  # the calendar ends with the year 9999
    return None


def next_slots(row: ScheduleRow, count: int) -> list[int]:
    """Return at most `count` slots of a schedule, the next one first. A paused one has none until it is resumed."""
    spec, slots = decode_spec(row), list[int]()
    if spec.limit is not None:
        count = min(count, spec.limit - row.fired)
    slot = None if row.paused else row.next
    while slot is not None and len(slots) < count:
        slots.append(slot)
        slot = next_slot(spec, slot)
    return slots


def first_slot(spec: ScheduleSpec, now: int, last: int | None = None) -> int | None:
    """Return the first slot of a schedule: always after the slot it fired last, even if the clock went back since."""
    if spec.at_ms is not None:
        return spec.at_ms if last is None or spec.at_ms > last else None  # a time in the past still fires
    return next_slot(spec, now if last is None else max(now, last))


def oldest_catch_up_slot(spec: ScheduleSpec, slot: int, now: int) -> int | None:
    """Return the oldest slot that catch_up="all" still fires, or None if no slot was missed too long ago."""
    if spec.catch_up != "all" or now - slot < MAX_CATCH_UP_SLOTS * _shortest_gap(spec):
        return None
    if spec.every_ms is not None:
        floor = (now // spec.every_ms - MAX_CATCH_UP_SLOTS + 1) * spec.every_ms
    elif spec.cron is not None:
        back = CronSim(spec.cron, _local(now + 1000, spec.tz), reverse=True)
        floor = now
        for _ in range(MAX_CATCH_UP_SLOTS):
            floor = _ms(next(back, datetime.fromtimestamp(0, UTC)))
            if floor <= slot:
                return None
    else:
        return None
    return next_slot(spec, floor - 1) if floor > slot else None


def _shortest_gap(spec: ScheduleSpec) -> int:
    return spec.every_ms or (60_000 if spec.cron is not None and len(spec.cron.split()) == 5 else 1000)


def _local(ms: int, tz: str) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone(ZoneInfo(tz))


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


# Decisions


@dataclass(frozen=True)
class LastSlotWork:
    """The current state of what the last slot started."""

    id: str
    is_open: bool
    ended_ms: int | None = None
    is_cancellable: bool = True  # False for a plain job that is running


@dataclass(frozen=True)
class FireSlot:
    """The slot fires. `replaces` is the run or job of the last slot, which is cancelled first."""

    move: ScheduleMove
    replaces: str | None = None


@dataclass(frozen=True)
class SkipSlot:
    """The slot is skipped."""

    next: int | None
    reason: Literal["missed", "overlap"]


@dataclass(frozen=True)
class HoldSlot:
    """The slot waits until the run or job of the last slot has ended."""

    blocked_by: str


Decision = FireSlot | SkipSlot | HoldSlot


def decide(
    spec: ScheduleSpec, row: ScheduleRow, now: int, last_work: LastSlotWork | None = None, oldest: int | None = None
) -> Decision:
    """Decide about a due slot. `oldest` is the oldest slot that catch_up="all" still fires."""
    slot = row.next
    assert slot is not None
    current = max(slot, oldest) if oldest is not None else _skip_missed(spec, slot, now, last_work)
    if current != slot:
        return SkipSlot(current, "missed")
    following = next_slot(spec, slot if spec.catch_up == "all" else max(now, slot))
    is_last = spec.limit is not None and row.fired + 1 >= spec.limit
    move = ScheduleMove(row.id, slot, None if is_last else following)
    if last_work is None or not last_work.is_open or spec.overlap == "allow":
        return FireSlot(move)
    if spec.overlap == "skip":
        return SkipSlot(following, "overlap")
    if spec.overlap == "replace" and last_work.is_cancellable:
        return FireSlot(move, replaces=last_work.id)
    return HoldSlot(last_work.id)


def _skip_missed(spec: ScheduleSpec, slot: int, now: int, last_work: LastSlotWork | None) -> int | None:
    """Return the slot, or with catch_up="none" the next slot that was not missed."""
    # A held slot is due from the end of the work it waited for.
    since = max(slot, (last_work.ended_ms or 0) if last_work is not None and spec.overlap != "allow" else 0)
    if spec.catch_up == "none" and now - since > MISSED_AFTER_MS:
        return next_slot(spec, max(now - MISSED_AFTER_MS - 1, slot))
    return slot


def renew_schedule(was: ScheduleRow | None, id: str, spec: ScheduleSpec, target: Target, now: int) -> ScheduleRow:
    """Return a schedule with a new spec. It keeps what it has fired and, if its times are the same, its next slot."""
    encode = msgspec.json.encode
    if was is None:
        return ScheduleRow(id, encode(spec), encode(target), first_slot(spec, now))
    next_ = was.next
    if next_ is None or _has_other_times(was, spec):
        next_ = first_slot(spec, now, was.last)
    if spec.limit is not None and was.fired >= spec.limit:
        next_ = None
    if next_ is not None and spec.end_ms is not None and next_ > spec.end_ms:
        next_ = None
    return ScheduleRow(id, encode(spec), encode(target), next_, was.last, was.paused, was.fired)


def _has_other_times(was: ScheduleRow, spec: ScheduleSpec) -> bool:
    try:
        return decode_spec(was).times != spec.times
    except UnreadableRecord:
        return True


def resume_schedule(row: ScheduleRow, now: int) -> ScheduleRow:
    """Return a paused schedule as resumed. Slots that passed during the pause are not fired."""
    next_, spec = row.next, decode_spec(row)
    decode_target(row)  # one that cannot be read stays paused
    if next_ is not None and next_ <= now:
        next_ = next_slot(spec, now)
    return msgspec.structs.replace(row, next=next_, paused=False)
