"""Log lines of runs and of plain jobs, read from their events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..core.errors import BadArgument
from ..core.events import Event, log_topic
from ..core.ids import event_seq
from ..core.text import shorten
from ..ports.store import Store

LEVELS = ("debug", "info", "warn", "error")
PAGE_EVENTS = 500


class LogView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A line that a handler logged."""

    id: str  # of its event: the cursor
    ts: str
    level: str
    msg: str
    run: str | None = None
    job: str | None = None  # of a plain job
    step: str | None = None
    n: int = 1  # which instance of the step
    attempt: int = 1
    fields: dict[str, Any] = {}


class LogFilter(msgspec.Struct, frozen=True):
    """Which lines to return. A level includes those above it."""

    step: str | None = None
    n: int | None = None
    attempt: int | None = None
    level: str = "debug"

    def accepts(self, line: LogView) -> bool:
        return (
            (self.step is None or line.step == self.step)
            and (self.n is None or line.n == self.n)
            and (self.attempt is None or line.attempt == self.attempt)
            and (line.level not in LEVELS or LEVELS.index(line.level) >= LEVELS.index(self.level))
        )


def build_filter(step: str | None, attempt: int | None, level: str | None, n: int | None = None) -> LogFilter:
    """Check the arguments of a look-up of log lines."""
    word = "warn" if level == "warning" else level or "debug"
    if word not in LEVELS:
        raise BadArgument(f"level must be debug, info, warning or error, got {shorten(level)}")
    for name, value in (("attempt", attempt), ("n", n)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise BadArgument(f"{name} must be a whole number of at least 1, got {shorten(value)}")
    return LogFilter(step, n, attempt, word)


def read_line(event: Event) -> LogView | None:
    """Return the line of a `log` event, None for another event."""
    if event.kind != "log" or not isinstance(event.data, dict):
        return None
    data, meta = event.data, event.meta or {}
    fields = data.get("fields")
    return LogView(
        event.id,
        event.ts,
        str(data.get("level", "info")),
        str(data.get("msg", "")),
        event.flow,
        event.subject if event.flow is None else None,
        event.step,
        _count(meta.get("n")),
        _count(meta.get("attempt")),
        fields if isinstance(fields, dict) else {},
    )


async def read_run_lines(store: Store, stream: str, wanted: LogFilter, after: str | None, limit: int) -> list[LogView]:
    """Return lines of a run's stream, oldest first. It reads the stream from the cursor on, until it has enough."""
    found: list[LogView] = []
    while len(found) < limit and (page := await store.read(stream, after=after, limit=PAGE_EVENTS)):
        found += _lines(page, wanted.accepts)
        after = page[-1].id
        if len(page) < PAGE_EVENTS:
            break
    return found[:limit]


async def read_job_lines(store: Store, job: str, wanted: LogFilter, after: str | None, limit: int) -> list[LogView]:
    """Return lines of a plain job, oldest first. They are indexed by the job: its queue's stream is not read."""
    last = event_seq(after) if after is not None else 0
    found: list[LogView] = []
    cursor: str | None = None
    while len(found) < limit:
        page = await store.events_by_kind(log_topic(job), after=cursor, limit=PAGE_EVENTS)
        found += _lines([item.event for item in page if item.event.seq > last], wanted.accepts)
        if len(page) < PAGE_EVENTS:
            break
        cursor = page[-1].cursor
    return found[:limit]


def _lines(events: list[Event], accepts: Callable[[LogView], bool]) -> list[LogView]:
    return [line for event in events if (line := read_line(event)) is not None and accepts(line)]


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 1
