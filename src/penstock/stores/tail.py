"""Follow a stream: first the events that exist, then new ones, without a gap."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

from ..core.events import Event
from ..core.outage_retry import OutageRetry
from ..ports.store import Signals

PAGE_EVENTS = 500
POLL_INTERVAL_S = 1.0  # a wake-up can be lost with its process, the data cannot


class ReadEvents(Protocol):
    """Reads a page of a stream."""

    def __call__(self, stream: str, *, after: str | None, limit: int) -> Awaitable[list[Event]]: ...


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
                await listener.wait(POLL_INTERVAL_S)
