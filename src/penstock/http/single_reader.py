"""A reader for one client: it follows an iterator that cannot be shared, such as the events that BullMQ keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

from ..core.events import Event, encode_event
from .shared_reader import Batch, LiveEvent, locate_event

MakeEvents = Callable[[str | None], AsyncIterator[Event]]
Redact = Callable[[bytes], bytes]


class SingleReader:
    """Follows events for one client. It reads the next one only when the client has taken those before.

    Streams hold redacted events; what others wrote is redacted here."""

    def __init__(self, stream: str, make: MakeEvents, redact: Redact) -> None:
        self._stream = stream
        self._make = make
        self._redact = redact

    @asynccontextmanager
    async def share(self) -> AsyncIterator[SingleReader]:
        """Yield the reader, in the form of those that several clients share."""
        yield self

    async def follow(self, after: str, heartbeat_s: float | None = None) -> AsyncGenerator[Batch | None]:
        """Yield the events after a cursor, then live ones; and None when none came for a while."""
        events = self._make(after or None)
        pending: asyncio.Task[Event] | None = None
        try:
            while True:
                pending = pending or asyncio.ensure_future(_next(events))
                if not (await asyncio.wait((pending,), timeout=heartbeat_s))[0]:
                    yield None
                    continue
                event, pending = pending.result(), None
                json = self._redact(encode_event(event))
                yield Batch((LiveEvent(locate_event(event.id), event.id, self._stream, event, json),))
        finally:
            if pending is not None:
                pending.cancel()
                await asyncio.wait((pending,))
            if isinstance(events, AsyncGenerator):
                await events.aclose()


async def _next(events: AsyncIterator[Event]) -> Event:
    return await anext(events)
