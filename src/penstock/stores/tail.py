"""Follow a stream: first the events that exist, then new ones, without a gap.

Readers of one stream that wait for the same event share the read: a signal wakes all of them at once.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

import msgspec

from ..core.events import Event
from ..core.outage_retry import OutageRetry
from ..ports.store import Signals

PAGE_EVENTS = 500
POLL_INTERVAL_S = 1.0  # a wake-up can be lost with its process, the data cannot
POLL_PER_LISTENER_S = 0.01  # so that a process polls at most a hundred times a second


class ReadEvents(Protocol):
    """Reads a page of a stream."""

    def __call__(self, stream: str, *, after: str | None, limit: int) -> Awaitable[list[Event]]: ...


class SharedReads:
    """Reads pages of streams. Calls for the same page share a read that has not started yet."""

    def __init__(self, read: ReadEvents) -> None:
        self._read = read
        self._waiting: dict[tuple[str, str | None, int], _SharedPage] = {}

    async def __call__(self, stream: str, *, after: str | None, limit: int) -> list[Event]:
        """Return a page. The read starts after this call, so it finds what was committed before."""
        key = (stream, after, limit)
        page = self._waiting.get(key)
        if page is None:
            page = self._waiting[key] = _SharedPage(asyncio.create_task(self._read_next(key)))
        return await page.wait()

    async def _read_next(self, key: tuple[str, str | None, int]) -> list[Event]:
        del self._waiting[key]
        stream, after, limit = key
        return await self._read(stream, after=after, limit=limit)


class _SharedPage:
    """A page that several readers wait for. Each gets events of its own, because their data can be changed."""

    def __init__(self, task: asyncio.Task[list[Event]]) -> None:
        self._task = task
        self._readers = 0
        self._encoded: bytes | None = None
        task.add_done_callback(_retrieve)

    async def wait(self) -> list[Event]:
        self._readers += 1
        events = await asyncio.shield(self._task)  # a reader that is cancelled leaves the others
        if self._readers == 1 or not events:
            return list(events)
        if self._encoded is None:
            try:
                self._encoded = _encode(events)
            except (OverflowError, msgspec.EncodeError):  # a number that msgpack does not have
                return copy.deepcopy(events)
        return _decode(self._encoded)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Event]).decode


def _retrieve(task: asyncio.Task[list[Event]]) -> None:
    if not task.cancelled():
        task.exception()  # the readers that waited have it


async def follow(read: ReadEvents, signals: Signals, stream: str, after: str | None) -> AsyncIterator[Event]:
    """Yield the events of a stream after a cursor, then live.

    Listen before reading, so that no event is lost between the two. During an outage of the store, wait for it and
    continue at the same cursor.
    """
    cursor, retry = after, OutageRetry(f"stream {stream}")
    with signals.listen(f"stream:{stream}") as listener:
        while True:
            page = await retry.call(read, stream, after=cursor, limit=PAGE_EVENTS)
            for event in page:
                cursor = event.id
                yield event
            if len(page) < PAGE_EVENTS:
                await listener.wait(max(POLL_INTERVAL_S, signals.listeners * POLL_PER_LISTENER_S))
