"""State changes as events of their run: `state.set` and `state.deleted`, in the commit that changes the state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from ..core.clock import to_iso
from ..core.events import EventBodies, EventBody
from ..ports.unit import NewEvent, StateWrite

MAX_VALUE_BYTES = 4096  # a larger value is recorded by its size and hash
_encode = msgspec.json.Encoder().encode


def build_state_events(
    bodies: EventBodies,
    stream: str,
    run: str,
    writes: Iterable[StateWrite],
    step: str | None = None,
    n: int = 1,
    correlation_id: str | None = None,
    attempt: int | None = None,
) -> list[NewEvent]:
    """Build the events of the writes to a run's own keys. Shared keys belong to no run and are not recorded."""
    if not bodies.records_state:
        return []
    prefix, meta = f"run/{run}/", {}
    if attempt is not None:
        meta["attempt"] = attempt
    if n > 1:
        meta["n"] = n
    events = []
    for write in writes:
        if write.key.startswith(prefix):
            kind = "state.set" if write.value is not None else "state.deleted"
            data = msgspec.Raw(_encode(_describe(bodies, write, prefix)))
            body = EventBody(kind, None, None, step, None, correlation_id, data, meta or None)
            events.append(NewEvent(stream, bodies.encode(body)))
    return events


def hash_value(value: bytes) -> str:
    """Return the hash by which an event names a large value."""
    return hashlib.sha256(value).hexdigest()


def _describe(bodies: EventBodies, write: StateWrite, prefix: str) -> dict[str, Any]:
    data: dict[str, Any] = {"key": write.key[len(prefix) :]}
    value = write.value
    if value is None:
        return data
    if len(value) > MAX_VALUE_BYTES:
        data.update(size=len(value), hash=hash_value(value))
    else:
        data["value"] = msgspec.Raw(bodies.redact_named(data["key"], value))
    if write.expires is not None:
        data["expires"] = to_iso(write.expires)
    return data
