"""BullMQ's events of a queue's jobs, whichever program adds and works on them, as our events.

They are read from BullMQ's own stream (`bull:<queue>:events`, about ten thousand entries) and not stored again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import hiredis
import msgspec

from ...core.clock import to_iso
from ...core.events import Event, unreadable_event
from ...core.outage_retry import OutageRetry
from ...core.payload import DECODE_ERRORS
from .connection import MAX_REDIRECTS, Client, Connection, connect
from .job_options import unescape_id
from .resp import pack, translate

BLOCK_MS = 1000  # must be shorter than REPLY_TIMEOUT_S, or the connection gives up on an idle queue
PAGE = 500
Fields = dict[str, str]


async def follow_queue_events(client: Client, key: str, after: str | None) -> AsyncIterator[Event]:
    """Yield the events after the cursor (None: all that BullMQ has kept), then new ones as they come. Raise StoreClosed
    when the store's own `client` is closed.

    It has a connection of its own, because the read blocks.
    """
    topology, cursor, outage_retry = client.topology, after or "0-0", OutageRetry(f"job events of {key}")
    connection: Connection | None = None

    async def read_page() -> list[Any]:
        nonlocal connection
        for _ in range(MAX_REDIRECTS + 1):
            client.check_open()
            if connection is None or not connection.is_open:
                connection = await connect(topology, "penstock-jobs")
            (reply,) = await connection.call(_read_command(key, cursor), 1)
            if not topology.follow_move(reply, connection.peer):
                break
            connection.close()  # the page is on another node
        if isinstance(reply, hiredis.HiredisError):
            raise translate(reply, str(topology))
        return list(reply[0][1]) if reply else []

    try:
        while True:
            for id, flat in await outage_retry.call(read_page):
                cursor = id.decode()
                event = build_event(key, cursor, flat)
                if event is not None:
                    yield event
    finally:
        if connection is not None:
            connection.close()


def _read_command(key: str, cursor: str) -> bytes:
    return pack(("XREAD", "COUNT", PAGE, "BLOCK", BLOCK_MS, "STREAMS", key, cursor))


def build_event(key: str, id: str, flat: list[bytes]) -> Event | None:
    """Return our event for one of BullMQ's; None if it is not about a job or repeats another event."""
    try:
        return _translate_event(id, flat)
    except DECODE_ERRORS as problem:  # another program wrote it
        ms, _, seq = id.partition("-")
        return unreadable_event(key, int(seq), int(ms), b" ".join(flat), problem)


def _translate_event(id: str, flat: list[bytes]) -> Event | None:
    raw = dict(zip(flat[::2], flat[1::2], strict=True))
    found = {name.decode(): value.decode() for name, value in raw.items() if name != b"jobId"}
    known = _KINDS.get(found.get("event", ""))
    if known is None or b"jobId" not in raw:
        return None
    if found.get("nq") == "cancelled":  # for BullMQ's own readers it has failed
        known = "job.cancelled", lambda fields: {"reason": fields.get("failedReason", "")}, None
    kind, data_of, meta_of = known
    job = unescape_id(raw[b"jobId"])
    meta = meta_of(found) if meta_of is not None else None
    return Event(id, to_iso(int(id.partition("-")[0])), kind, job, None, None, None, job, data_of(found), meta)


def _json(text: str | None) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return text  # written by another program


def _no_data(_: Fields) -> Any:
    return None


def _name(found: Fields) -> dict[str, Any] | None:
    return {"name": found["name"]} if "name" in found else None


_KINDS: dict[str, tuple[str, Callable[[Fields], Any], Callable[[Fields], dict[str, Any] | None] | None]] = {
    "added": ("job.added", _no_data, _name),
    "active": ("job.active", _no_data, None),
    "progress": ("job.progress", lambda found: {"progress": _json(found.get("data"))}, None),
    "completed": ("job.completed", lambda found: {"result": _json(found.get("returnvalue"))}, None),
    "failed": ("job.failed", lambda found: {"error": found.get("failedReason", ""), "willRetry": False}, None),
    "delayed": ("job.delayed", lambda found: {"until": to_iso(int(float(found.get("delay") or 0)))}, None),
    "stalled": ("job.stalled", _no_data, None),
    "removed": ("job.removed", lambda found: {"from": found.get("prev")}, None),
    "deduplicated": ("job.deduplicated", lambda found: {"key": found.get("deduplicationId")}, None),
}
