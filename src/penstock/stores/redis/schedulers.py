"""Job schedulers of BullMQ, set up by other programs: whoever takes a job of one makes the next."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

log = logging.getLogger("penstock.redis")


class Scheduled(msgspec.Struct, frozen=True):
    """A job that was handed out, and the scheduler that made it."""

    queue: str
    job: str
    scheduler: str
    opts: bytes


def following(one: Scheduled, now_ms: int) -> tuple[int, bytes] | None:
    """When the next job is due, and its options; None when there is to be none. Where the scheduler says `every`, the
    time is worked out by BullMQ's script."""
    opts: dict[str, Any] = msgspec.json.decode(one.opts)
    repeat = dict(opts.get("repeat") or {})
    count = int(repeat.get("count") or 0) + 1
    ended = repeat.get("endDate")
    if (repeat.get("limit") is not None and count > int(repeat["limit"])) or (ended and _ms(ended) < now_ms):
        return None
    due = 0
    if not repeat.get("every"):
        try:
            due = _next(str(repeat.get("pattern")), repeat.get("tz"), max(now_ms, int(opts.get("prevMillis") or 0)))
        except (CronSimError, KeyError, StopIteration) as problem:
            log.warning("the scheduler %r of queue %r stops here: %s", one.scheduler, one.queue, problem)
            return None
    opts.update(repeat={**repeat, "count": count}, repeatJobKey=one.scheduler)
    if due:
        opts.update(prevMillis=due, jobId=f"repeat:{one.scheduler}:{due}")
    return due, msgspec.msgpack.encode(opts)


def _next(pattern: str, zone: str | None, after_ms: int) -> int:
    moment = datetime.fromtimestamp(after_ms / 1000, ZoneInfo(zone) if zone else UTC)
    return int(next(CronSim(pattern, moment)).timestamp() * 1000)


def _ms(moment: Any) -> int:
    if isinstance(moment, int | float):
        return int(moment)
    return int(datetime.fromisoformat(str(moment).replace("Z", "+00:00")).timestamp() * 1000)
