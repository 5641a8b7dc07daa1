"""Units written through someone else's connection: as the text that the table `pending` takes."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec

from ...ports.unit import Unit
from .columns import Columns

_TEXTS = ("payload", "body")  # json in the tables; other bytes are bytea
_UNIT = (
    *("id", "remember", "job", "attempt", "token", "guard", "run", "run_id", "expect", "after", "flow", "status"),
    *("flags", "record", "end", "failed", "due", "result", "error", "progress", "rest", "once", "schedule", "slot"),
    "next",
)
_JOB = (
    *("unit", "id", "queue", "name", "payload", "priority", "due", "run", "scope", "opts", "stream", "head"),
    "rate_key",
)
_EVENT = ("unit", "job", "stream", "kind", "body")
_STATE = ("unit", "key", "value", "expect", "expires")


def pending(unit: Unit, schema: str, now: int | None) -> str:
    """A unit from outside: a run begun, events, jobs, state. It takes nothing and ends no attempt."""
    assert unit.claim is None
    assert not any((unit.removes, unit.wakes, unit.waits, unit.memos, unit.schedule))
    columns = Columns((unit,), schema)
    doc = _named(_UNIT, columns.rows["u"][0]) | {
        "now": now,
        "kinds": columns.values(now)[1],
        "jobs": [_named(_JOB, row) for row in columns.rows["j"]],
        "events": [_named(_EVENT, row) for row in columns.rows["e"]],
        "state": [_named(_STATE, row) for row in columns.rows["s"]],
        "topics": sorted(_topics(columns, unit)),
    }
    return msgspec.json.encode(doc).decode()


def _named(names: tuple[str, ...], row: tuple[Any, ...]) -> dict[str, Any]:
    return {name: _plain(name, value) for name, value in zip(names, row, strict=True) if value is not None}


def _plain(name: str, value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    return value.decode() if name in _TEXTS else b64encode(value).decode()


def _topics(columns: Columns, unit: Unit) -> set[str]:
    streams = {event.stream for _, _, event in columns.events}
    topics = {f"stream:{stream}" for stream in streams} | {f"queue:{job.queue}" for job in unit.jobs}
    return topics | {"events"} if streams else topics
