"""Encode units that the caller writes through its own connection, as rows of the table `enlisted_units`."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec

from ...ports.unit import Unit
from .encode_commit import EncodedUnits

_JSON_FIELDS = ("payload", "body", "original")  # json in the tables; other bytes are bytea
_JOB = (
    "unit", "id", "queue", "name", "payload", "priority", "due", "run", "scope", "opts", "started_stream",
    "started_prefix", "rate_key", "waits_for_children", "order_key", "error_group",
)  # fmt: skip
_EVENT = ("unit", "job", "stream", "kind", "body", "original")
_STATE = ("unit", "key", "value", "expect", "expires")
_UNIT = (
    "id", "is_remembered", "job", "attempt", "token", "needs_open_run", "run", "expected_version", "after_unit", "kind",
    "flow", "status", "closed", "paused", "cancels_jobs", "record", "end_state", "failed", "due", "result", "error",
    "progress", "has_extras", "uncounted",
)  # fmt: skip


def encode_enlisted(unit: Unit, schema: str, now: int | None) -> str:
    """Return a unit from outside as JSON: a new run, events, jobs, state. It removes no job and ends no attempt."""
    assert unit.claim is None
    assert not any((unit.removes, unit.cancels, unit.wakes, unit.waits, unit.memos, unit.schedule))
    encoded = EncodedUnits((unit,), schema)
    doc = {
        "now": now,
        "run_id": unit.run.id if unit.run is not None else None,
        "once_key": unit.once_key,
        "topics": [key for key, _ in encoded.topic_locks()],
        "unit": _named(_UNIT, encoded.unit_rows[0]),
        "jobs": [_named(_JOB, row) for row in encoded.job_rows],
        "events": [_named(_EVENT, row) for row in encoded.event_rows],
        "states": [_named(_STATE, row) for row in encoded.extras.get("states", ())],
        "run_keys": [key for _, _, key in encoded.extras.get("run_keys", ())],
        "wakes": sorted(_topics(encoded, unit)),
    }
    return msgspec.json.encode(doc).decode()


def _named(names: tuple[str, ...], row: tuple[Any, ...]) -> dict[str, Any]:
    return {name: _encode(name, value) for name, value in zip(names, row, strict=True) if value is not None}


def _encode(name: str, value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    return value.decode() if name in _JSON_FIELDS else b64encode(value).decode()


def _topics(encoded: EncodedUnits, unit: Unit) -> set[str]:
    streams = {event.stream for _, _, event in encoded.events}
    topics = {f"stream:{stream}" for stream in streams} | {f"queue:{job.queue}" for job in unit.jobs}
    return topics | {"events"} if streams else topics
