"""What BullMQ tells of a queue's jobs, whoever adds them and works on them, as events of ours.

They are BullMQ's own stream (`bull:<queue>:events`, of which it keeps some ten thousand), read and not stored again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import hiredis
import msgspec

from ...core.clock import iso
from ...core.events import Event
from ...core.outage_retry import OutageRetry
from .connection import Wire, connect
from .names import outside
from .place import Place
from .resp import pack, translate

BLOCK_MS = 1000  # well below the time after which a silent server is given up
Fields = dict[str, str]


async def follow(place: Place, key: str, after: str | None) -> AsyncIterator[Event]:
    """Those after the cursor, all that are kept without one, then live; the connection is its own."""
    cursor, patience = after or "0-0", OutageRetry(f"job events of {key}")
    wire: Wire | None = None

    async def page() -> list[Any]:
        nonlocal wire
        wire = wire if wire is not None and wire.open else await connect(place, "penstock-jobs")
        return await _page(wire, key, cursor, place)

    try:
        while True:
            for id, flat in await patience.call(page):
                cursor = id.decode()
                event = event_of(cursor, flat)
                if event is not None:
                    yield event
    finally:
        if wire is not None:
            wire.close()


async def _page(wire: Wire, key: str, cursor: str, place: Place) -> list[Any]:
    command = pack(("XREAD", "COUNT", 500, "BLOCK", BLOCK_MS, "STREAMS", key, cursor))
    (reply,) = await wire.call(command, 1)
    if place.learn(reply, wire.peer):
        wire.close()
        return []  # the next connection goes where the keys are
    if isinstance(reply, hiredis.HiredisError):
        raise translate(reply, str(place))
    return list(reply[0][1]) if reply else []


def event_of(id: str, flat: list[bytes]) -> Event | None:
    """An event in our words; None for what is not about a job, or says what another one does."""
    found = {flat[n].decode(): flat[n + 1].decode() for n in range(0, len(flat), 2)}
    known = _KINDS.get(found.get("event", ""))
    if known is None or "jobId" not in found:
        return None
    kind, data_of, meta_of = known
    job = outside(found["jobId"].encode())
    meta = meta_of(found) if meta_of is not None else None
    return Event(id, iso(int(id.partition("-")[0])), kind, job, None, None, None, job, data_of(found), meta)


def _json(text: str | None) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return text  # what another program has put there


def _nothing(_: Fields) -> Any:
    return None


def _name(found: Fields) -> dict[str, Any] | None:
    return {"name": found["name"]} if "name" in found else None


_KINDS: dict[str, tuple[str, Callable[[Fields], Any], Callable[[Fields], dict[str, Any] | None] | None]] = {
    "added": ("job.added", _nothing, _name),
    "active": ("job.active", _nothing, None),
    "progress": ("job.progress", lambda found: {"progress": _json(found.get("data"))}, None),
    "completed": ("job.completed", lambda found: {"result": _json(found.get("returnvalue"))}, None),
    "failed": ("job.failed", lambda found: {"error": found.get("failedReason", ""), "willRetry": False}, None),
    "delayed": ("job.delayed", lambda found: {"until": iso(int(float(found.get("delay") or 0)))}, None),
    "stalled": ("job.stalled", _nothing, None),
    "removed": ("job.removed", lambda found: {"from": found.get("prev")}, None),
    "deduplicated": ("job.deduplicated", lambda found: {"key": found.get("deduplicationId")}, None),
}
