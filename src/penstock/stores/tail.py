"""Following a stream: what was written, then what is being written, without a gap between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

from ..core.events import Event
from ..core.outage_retry import OutageRetry
from ..ports.store import Signals

PAGE = 500
BACKSTOP = 1.0  # seconds; a wake-up can be lost with its process, the data cannot


class Reads(Protocol):
    def __call__(self, stream: str, *, after: str | None, limit: int) -> Awaitable[list[Event]]: ...


async def follow(read: Reads, signals: Signals, stream: str, after: str | None) -> AsyncIterator[Event]:
    """Listens first and reads by cursor afterwards, so nothing can fall between backfill and live.

    A store that goes away is waited for, and the reading goes on where it was."""
    cursor, patience = after, OutageRetry(f"stream {stream}")
    with signals.listen(f"stream:{stream}") as listener:
        while True:
            page = await patience.call(read, stream, after=cursor, limit=PAGE)
            for event in page:
                cursor = event.id
                yield event
            if len(page) < PAGE:
                await listener.wait(BACKSTOP)
