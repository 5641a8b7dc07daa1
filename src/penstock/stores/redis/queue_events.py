"""BullMQ's events of a queue's jobs, whichever program adds and works on them, as our events.

They are read from BullMQ's own stream (`bull:<queue>:events`, about ten thousand entries) and not stored again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MovedError

from ...core.clock import to_iso
from ...core.events import Event
from ...core.outage_retry import OutageRetry
from .job_ids import unescape_id
from .resp import translate_client_error
from .topology import Host, Topology

BLOCK_MS = 1000
READ_TIMEOUT_S = 15.0  # must be longer than BLOCK_MS, or redis-py gives up on an idle queue
PAGE = 500
Fields = dict[str, str]


class QueueEvents:
    """Reads one stream over a connection of its own."""

    def __init__(self, topology: Topology, key: str) -> None:
        self._topology = topology
        self._key = key
        self._client: Redis | None = None
        self._peer: Host = ("", 0)

    async def follow(self, after: str | None) -> AsyncIterator[Event]:
        """Yield the events after the cursor (None: all that BullMQ has kept), then new ones as they come."""
        cursor, outage_retry = after or "0-0", OutageRetry(f"job events of {self._key}")
        try:
            while True:
                for id, fields in await outage_retry.call(self._page, cursor):
                    cursor = id.decode()
                    event = build_event(cursor, fields)
                    if event is not None:
                        yield event
        finally:
            await self._drop()

    async def _page(self, cursor: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
        try:
            client = await self._connected()
            found: Any = await client.xread({self._key: cursor}, count=PAGE, block=BLOCK_MS)
        except MovedError as moved:
            self._topology.follow_move(moved, self._peer)
            await self._drop()
            return []  # the next page is read from the other node
        except (RedisError, OSError) as problem:
            self._topology.forget_node()
            await self._drop()
            raise translate_client_error(problem, str(self._topology)) from None
        return list(found[0][1]) if found else []

    async def _connected(self) -> Redis:
        if self._client is None:
            topology = self._topology
            self._peer = await topology.find_master() if topology.address.master else await self._first()
            self._client = self._client_of(self._peer)
        return self._client

    async def _first(self) -> Host:
        """Return the first server that answers."""
        *others, last = self._topology.candidates()
        for host in others:
            try:
                async with self._client_of(host) as client:
                    await client.ping()
                return host
            except (RedisError, OSError):
                self._topology.forget_node()
        return last

    def _client_of(self, host: Host) -> Redis:
        options = self._topology.client_options("penstock-jobs", READ_TIMEOUT_S)
        return Redis(host=host[0], port=host[1], retry=Retry(NoBackoff(), 0), **options)

    async def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def build_event(id: str, fields: dict[bytes, bytes]) -> Event | None:
    """Return our event for one of BullMQ's; None if it is not about a job or repeats another event."""
    found = {name.decode(): value.decode() for name, value in fields.items()}
    known = _KINDS.get(found.get("event", ""))
    if known is None or "jobId" not in found:
        return None
    kind, data_of, meta_of = known
    job = unescape_id(found["jobId"].encode())
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
