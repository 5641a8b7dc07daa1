"""BullMQ's job schedulers of other programs: the worker that claims a scheduled job creates the next job."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim

log = logging.getLogger("penstock.redis")


class ScheduledJob(msgspec.Struct, frozen=True):
    """A claimed job and the scheduler that created it."""

    queue: str
    job: bytes
    scheduler: bytes
    opts: bytes


def next_job(job: ScheduledJob, now_ms: int) -> tuple[int, bytes] | None:
    """Return when the next job is due and its options; None if the scheduler has ended or cannot be read.

    The time is 0 for a scheduler with `every`: BullMQ's script computes it.
    """
    try:
        return _next_job(job, now_ms)
    except Exception as problem:  # another program wrote all of it
        scheduler = job.scheduler.decode(errors="replace")
        log.warning("stopping job scheduler %r of queue %r: %r", scheduler[:100], job.queue, problem)
        return None


def _next_job(job: ScheduledJob, now_ms: int) -> tuple[int, bytes] | None:
    opts: dict[str, Any] = msgspec.json.decode(job.opts)
    repeat = dict(opts.get("repeat") or {})
    count = int(repeat.get("count") or 0) + 1
    end = repeat.get("endDate")
    if (repeat.get("limit") is not None and count > int(repeat["limit"])) or (end and _ms(end) < now_ms):
        return None
    due = 0
    if not repeat.get("every"):
        after = max(now_ms, int(opts.get("prevMillis") or 0))
        due = _next_slot(str(repeat.get("pattern")), repeat.get("tz"), after)
    scheduler = job.scheduler.decode()
    opts.update(repeat={**repeat, "count": count}, repeatJobKey=scheduler)
    if due:
        opts.update(prevMillis=due, jobId=f"repeat:{scheduler}:{due}")
    return due, msgspec.msgpack.encode(opts)


def _next_slot(pattern: str, zone: str | None, after_ms: int) -> int:
    moment = datetime.fromtimestamp(after_ms / 1000, ZoneInfo(zone) if zone else UTC)
    return int(next(CronSim(pattern, moment)).timestamp() * 1000)


def _ms(moment: Any) -> int:
    if isinstance(moment, int | float):
        return int(moment)
    return int(datetime.fromisoformat(str(moment).replace("Z", "+00:00")).timestamp() * 1000)
