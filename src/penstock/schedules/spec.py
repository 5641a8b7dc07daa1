"""Schedules as values: when, what, and what becomes of a slot that is due. All of it pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from ..core.clock import MAX_TIME_MS, datetime_to_ms, to_iso
from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument, ConfigError
from ..ports.store import ScheduleRow
from ..ports.unit import ScheduleMove

Overlap = Literal["allow", "skip", "queue", "replace"]
CatchUp = Literal["one", "all", "none"]

MIN_INTERVAL_MS = 1000  # as often as cron can: each slot is a commit, and found by looking at a clock
MAX_CATCH_UP_SLOTS = 1000  # slots that catch_up="all" makes up for, the newest ones
MISSED_AFTER_MS = 60_000  # a slot older than this counts as missed for catch_up="none"
CODE_ORIGIN = "code"  # the origin of a schedule that a decorator or a worker file asks for


class BadSchedule(ConfigError, BadArgument):
    """A schedule is asked for that cannot be kept."""

    code = "bad_schedule"


class ScheduleSpec(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """When: every so many milliseconds, by a cron expression in a time zone, or once at a moment; and the policies."""

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
        """What its slots follow from: the rest may change without a slot being another."""
        return self.every_ms, self.cron, self.tz, self.at_ms, self.start_ms


class Target(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What: a flow to start or a queue to add a job to."""

    flow: str | None = None
    queue: str | None = None
    name: str | None = None
    input: Any = None
    priority: int | None = None


_spec = msgspec.json.Decoder(ScheduleSpec)
_target = msgspec.json.Decoder(Target)


def decode_spec(row: ScheduleRow) -> ScheduleSpec:
    return _spec.decode(row.spec)


def decode_target(row: ScheduleRow) -> Target:
    return _target.decode(row.target)


# Making one


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
    """A spec from what people write, or BadSchedule with the value that is wrong and the way out."""
    if sum(x is not None for x in (every, cron, at)) != 1:
        raise BadSchedule("a schedule needs exactly one of every='5m', cron='0 9 * * *' or at=<datetime>")
    every_ms = to_ms(every) if every is not None else None
    if every_ms is not None and every_ms < MIN_INTERVAL_MS:
        raise BadSchedule(f"every={every!r} is too often for a schedule: give every='1s' or more")
    if at is not None and not (start is None and end is None and limit is None):
        raise BadSchedule("at=… is once: start, end and limit are for every=… and cron=…")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise BadSchedule(f"limit={limit!r}: give a whole number of at least 1, or leave it out for no limit")
    _check_word("overlap", overlap, ("allow", "skip", "queue", "replace"))
    _check_word("catch_up", catch_up, ("one", "all", "none"))
    at_ms, start_ms, end_ms = _moment(at, "at"), _moment(start, "start"), _moment(end, "end")
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        raise BadSchedule(f"end={to_iso(end_ms)} is before start={to_iso(start_ms)}: nothing could ever fire")
    zone = _zone(tz)
    if cron is not None:
        _check_cron(cron, zone)
    return ScheduleSpec(every_ms, cron, tz, at_ms, start_ms, end_ms, limit, overlap, catch_up, origin)  # type: ignore[arg-type]


def _check_word(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadSchedule(f"{name}={value!r}: write one of {', '.join(map(repr, known))}")


def _moment(moment: datetime | None, name: str) -> int | None:
    if moment is None:
        return None
    if isinstance(moment, datetime) and moment.utcoffset() is None:
        raise BadSchedule(
            f"{name}={moment!r} has no time zone: write datetime(…, tzinfo=UTC), or tzinfo=ZoneInfo('Europe/Berlin')"
        )
    return datetime_to_ms(moment)


def _zone(tz: str) -> ZoneInfo:
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise BadSchedule(f"{tz!r} is not a time zone: one looks like 'Europe/Berlin'") from None


def _check_cron(cron: str, zone: ZoneInfo) -> None:
    try:
        next(CronSim(cron, datetime(2024, 1, 1, tzinfo=zone)))
    except (CronSimError, AttributeError) as problem:
        raise BadSchedule(f"{cron!r} is not a cron expression: {problem}; one looks like '0 9 * * 1-5'") from None
    except StopIteration:
        raise BadSchedule(f"{cron!r} never fires: no day of the next 50 years fits it") from None


# Slots


def next_slot(spec: ScheduleSpec, after_ms: int) -> int | None:
    """The first slot after a moment; None when there is no more."""
    if spec.start_ms is not None:
        after_ms = max(after_ms, spec.start_ms - 1)
    slot = _raw_slot(spec, after_ms)
    end = MAX_TIME_MS if spec.end_ms is None else spec.end_ms
    return None if slot is None or slot > end else slot


def _raw_slot(spec: ScheduleSpec, after_ms: int) -> int | None:
    if spec.at_ms is not None:
        return spec.at_ms if spec.at_ms > after_ms else None
    if spec.every_ms is not None:
        # Slots are counted from the epoch, so that every scheduler counts the same ones.
        return (after_ms // spec.every_ms + 1) * spec.every_ms
    assert spec.cron is not None
    try:
        for found in CronSim(spec.cron, _local(after_ms, spec.tz)):
            slot = _ms(found)
            # In an hour that comes twice cronsim knows the first pass only: asked in the second, it looks back.
            if slot > after_ms:
                return slot
    except (OverflowError, ValueError):
        pass  # the calendar ends with the year 9999
    return None


def first_slot(spec: ScheduleSpec, now: int, last: int | None = None) -> int | None:
    """Where a schedule begins: never at or before the slot it fired last, also if the clock has gone back since."""
    if spec.at_ms is not None:
        return spec.at_ms if last is None or spec.at_ms > last else None  # what is late is still to happen
    return next_slot(spec, now if last is None else max(now, last))


def oldest_catch_up_slot(spec: ScheduleSpec, slot: int, now: int) -> int | None:
    """From which slot on catch_up="all" makes up for what was missed; None when it is not too much."""
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


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


# Deciding


@dataclass(frozen=True)
class LastSlotWork:
    """What the last slot started, as it is now."""

    id: str
    open: bool
    ended_ms: int | None = None
    cancellable: bool = True  # a plain job that a worker holds is not


@dataclass(frozen=True)
class FireSlot:
    """The slot fires; what the last one started is cancelled first if it is replaced."""

    move: ScheduleMove
    replaces: str | None = None


@dataclass(frozen=True)
class SkipSlot:
    """The slot passes and nothing is started."""

    next: int | None
    reason: Literal["missed", "overlap"]


@dataclass(frozen=True)
class HoldSlot:
    """The slot waits until what the last one started has ended."""

    behind: str


Decision = FireSlot | SkipSlot | HoldSlot


def decide(
    spec: ScheduleSpec, row: ScheduleRow, now: int, before: LastSlotWork | None = None, oldest: int | None = None
) -> Decision:
    """What becomes of a due slot; `oldest` is the first one that catch_up="all" makes up for."""
    slot = row.next
    assert slot is not None
    kept = max(slot, oldest) if oldest is not None else _made_up_for(spec, slot, now, before)
    if kept != slot:
        return SkipSlot(kept, "missed")
    follows = next_slot(spec, slot if spec.catch_up == "all" else max(now, slot))
    is_last = spec.limit is not None and row.fired + 1 >= spec.limit
    move = ScheduleMove(row.id, slot, None if is_last else follows)
    if before is None or not before.open or spec.overlap == "allow":
        return FireSlot(move)
    if spec.overlap == "skip":
        return SkipSlot(follows, "overlap")
    if spec.overlap == "replace" and before.cancellable:
        return FireSlot(move, replaces=before.id)
    return HoldSlot(before.id)


def _made_up_for(spec: ScheduleSpec, slot: int, now: int, before: LastSlotWork | None) -> int | None:
    """The slot itself, or the one to go on with if it is to count as missed."""
    # A slot that was held back is as old as the end of what it waited for.
    since = max(slot, (before.ended_ms or 0) if before is not None and spec.overlap != "allow" else 0)
    if spec.catch_up == "none" and now - since > MISSED_AFTER_MS:
        return next_slot(spec, max(now - MISSED_AFTER_MS - 1, slot))
    return slot


def renew_schedule(was: ScheduleRow | None, id: str, spec: ScheduleSpec, target: Target, now: int) -> ScheduleRow:
    """A schedule made anew: what it has fired is kept, and with the same times also the slot it is at."""
    encode = msgspec.json.encode
    if was is None:
        return ScheduleRow(id, encode(spec), encode(target), first_slot(spec, now))
    next_ = was.next
    if next_ is None or decode_spec(was).times != spec.times:
        next_ = first_slot(spec, now, was.last)
    if spec.limit is not None and was.fired >= spec.limit:
        next_ = None
    if next_ is not None and spec.end_ms is not None and next_ > spec.end_ms:
        next_ = None
    return ScheduleRow(id, encode(spec), encode(target), next_, was.last, was.paused, was.fired)


def resume_schedule(row: ScheduleRow, now: int) -> ScheduleRow:
    """A schedule that goes on: slots that passed while it was paused stay unfired."""
    next_ = row.next
    if next_ is not None and next_ <= now:
        next_ = next_slot(decode_spec(row), now)
    return msgspec.structs.replace(row, next=next_, paused=False)
