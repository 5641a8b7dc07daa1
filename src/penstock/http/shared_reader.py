"""One reader per stream and process, shared by all clients that follow it.

The reader keeps the newest events in memory. A client pulls from there, or from the store if it is further behind, so a
slow client costs no memory and loses nothing. Each client sees every event after its cursor once, in order.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from ..app.app import App
from ..core.api_errors import ApiError
from ..core.events import Event, encode_event
from ..core.ids import event_seq, parse_feed_cursor
from ..core.outage_retry import OutageRetry
from ..core.text import shorten
from ..ports.store import Store
from .deadline import Deadline

KEEP_EVENTS = 2_000
KEEP_BYTES = 4 * 2**20
PAGE_EVENTS = 500
FIRST_PAGE_EVENTS = 50  # until their size is known
MIN_PAGE_EVENTS = 10  # for clients that are behind on a stream with large events
POLL_INTERVAL_S = 1.0  # a wake-up can be lost with its process, the data cannot
# With many clients, wake them less often: each wake-up sends to all of them.
PAUSE_PER_CLIENT_S = 0.0001
MAX_PAUSE_S = 0.04

Position = tuple[int, ...]


class LiveEvent(NamedTuple):
    """An event with its place in what is followed. `json` is encoded once for all clients."""

    position: Position
    cursor: str
    stream: str
    event: Event
    json: bytes


class Batch(list[LiveEvent]):
    """Events that follow each other. Clients that are equally far share it, and what it is encoded to."""

    __slots__ = ("encoded",)

    def __init__(self, events: Iterable[LiveEvent] = ()) -> None:
        super().__init__(events)
        self.encoded: dict[object, list[bytes]] = {}


NOTHING = Batch()
Read = Callable[[str, int], Awaitable[Batch]]
Locate = Callable[[str], Position]


def locate_event(id: str) -> Position:
    """Return the position of an event id within its stream. An empty id is before all events."""
    return (event_seq(id),) if id else ()


def locate_feed(cursor: str) -> Position:
    """Return the position of a feed cursor. An empty cursor is before all events."""
    return parse_feed_cursor(cursor) if cursor else ()


async def check_cursor(store: Store, stream: str | None, cursor: str) -> None:
    """Raise ApiError for a cursor after the newest event of a stream, or of the feed: a client would wait for a place
    that the stream reaches much later, and miss everything before it. And for the event id of another stream."""
    locate = locate_feed if stream is None else locate_event
    position = locate(cursor)
    if stream is None:
        newest = [item.cursor for item in await store.feed(None)]
    else:
        newest = [event.id for event in await store.read(stream, limit=1, backward=True)]
    if newest and position > locate(newest[-1]):
        raise ApiError(
            f"the cursor {shorten(cursor)} is after the newest event, {newest[-1]}: it is of another stream, or the "
            "store was restored from a backup; connect without a cursor"
        )
    if stream is not None and newest and position > (0,):
        await _check_same_event(store, stream, cursor)


async def _check_same_event(store: Store, stream: str, cursor: str) -> None:
    """Raise ApiError if the event with this number has another id. `0-7` is the number alone."""
    seq = event_seq(cursor)
    found = await store.read(stream, after=f"0-{seq - 1}", limit=1)
    if found and found[0].seq == seq and cursor not in (found[0].id, f"0-{seq}"):
        raise ApiError(
            f"the cursor {shorten(cursor)} is of another stream: event {seq} of this one is {found[0].id}; connect "
            "without a cursor"
        )


class SharedReader:
    """Follows one source from its end on, for as long as it has clients."""

    def __init__(
        self, name: str, topic: str, app: App, read: Read, locate: Locate, start: str, batch_bytes: int
    ) -> None:
        self._app = app
        self._locate = locate
        self._topic = topic
        self._read = read
        self._retry = OutageRetry(name, has_answered=True, retry_on=Exception)
        self._events: list[LiveEvent] = []
        self._positions: list[Position] = []
        self._ends: list[int] = []  # bytes of all events up to this one
        self._batch_bytes = batch_bytes
        self._page_events = FIRST_PAGE_EVENTS
        self._page: tuple[str, Batch] | None = None  # the last one that was read for a client that is behind
        self._paging = asyncio.Lock()
        self._batches: dict[int, Batch] = {}  # by the number of events before them; until the next event
        self._bytes = 0
        self._first = self._last = locate(start)  # kept: what comes after `_first`
        self._cursor = start
        self._changed = asyncio.Event()
        self.clients = 0
        self._task = asyncio.create_task(self._run(), name=f"penstock-live-{name}")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))
        self._wake()

    @property
    def cursor(self) -> str:
        """The cursor of the newest event."""
        return self._cursor

    async def follow(self, after: str, heartbeat_s: float | None = None) -> AsyncGenerator[Batch | None]:
        """Yield the events after a cursor, in batches, then live ones; and None when none came for a while."""
        cursor, position = after, self._locate(after)
        idle = Deadline()
        try:
            while not self._task.done():
                changed = self._changed
                if position < self._first:
                    batch = await self._read_page(cursor)
                    if not batch:  # what was between is trimmed
                        position = self._first
                        continue
                else:
                    batch = self._kept_after(position)
                if batch:
                    yield batch
                    cursor, position = batch[-1].cursor, batch[-1].position
                    continue
                try:
                    with idle.within(heartbeat_s):
                        await changed.wait()
                except TimeoutError:
                    yield None
        finally:
            idle.close()

    def _kept_after(self, position: Position) -> Batch:
        count = bisect.bisect_right(self._positions, position)
        batch = self._batches.get(count)
        if batch is None and count < len(self._events):
            before = self._ends[count - 1] if count else self._ends[0] - len(self._events[0].json)
            last = bisect.bisect_right(self._ends, before + self._batch_bytes)
            batch = self._batches[count] = Batch(self._events[count : max(last, count + 1)])
        return batch or NOTHING

    async def _read_page(self, cursor: str) -> Batch:
        """Read for a client that is behind. It holds what it was given until it has taken it, so that is little."""
        async with self._paging:  # one page at a time: fifty clients that reconnect do not cost fifty pages at once
            if self._page is None or self._page[0] != cursor:
                found = await self._read(cursor, self._page_events)
                self._page = (cursor, self._cut(found))
            return self._page[1]

    def _cut(self, page: Batch) -> Batch:
        if not page:
            return page
        ends = list(accumulate(len(live.json) for live in page))
        average = ends[-1] // len(page) + 1
        self._page_events = min(max(self._batch_bytes // average, MIN_PAGE_EVENTS), PAGE_EVENTS)
        fitting = max(bisect.bisect_right(ends, self._batch_bytes), 1)
        return page if fitting == len(page) else Batch(page[:fitting])

    async def _run(self) -> None:
        with self._app.store.signals.listen(self._topic) as listener:
            while True:
                batch = await self._retry.call(self._read, self._cursor, PAGE_EVENTS)
                if batch:
                    self._keep(batch)
                    await asyncio.sleep(min(self.clients * PAUSE_PER_CLIENT_S, MAX_PAUSE_S))
                if len(batch) < PAGE_EVENTS:
                    await listener.wait(POLL_INTERVAL_S)

    def _keep(self, batch: Batch) -> None:
        for live in batch:
            self._bytes += len(live.json)
            self._ends.append((self._ends[-1] if self._ends else 0) + len(live.json))
        self._events += batch
        self._positions += [live.position for live in batch]
        self._cursor, self._last = batch[-1].cursor, batch[-1].position
        surplus = 0
        while surplus < len(self._events) and (len(self._events) - surplus > KEEP_EVENTS or self._bytes > KEEP_BYTES):
            self._bytes -= len(self._events[surplus].json)
            self._first = self._positions[surplus]
            surplus += 1
        del self._events[:surplus], self._positions[:surplus], self._ends[:surplus]
        self._batches.clear()
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class SharedReaders:
    """The shared readers of one App. One ends with its last client."""

    def __init__(self, app: App, batch_bytes: int) -> None:
        self._app = app
        self._batch_bytes = batch_bytes
        self._readers: dict[str, SharedReader] = {}
        self._opening = asyncio.Lock()

    @property
    def clients(self) -> int:
        """The number of clients of all readers."""
        return sum(reader.clients for reader in self._readers.values())

    @asynccontextmanager
    async def stream(self, stream: str) -> AsyncIterator[SharedReader]:
        """Share the reader of one stream."""
        read = partial(self._read_stream, stream)
        async with self._share(stream, f"stream:{stream}", read, locate_event) as reader:
            yield reader

    @asynccontextmanager
    async def feed(self) -> AsyncIterator[SharedReader]:
        """Share the reader of all streams."""
        async with self._share("", "events", self._read_feed, locate_feed) as reader:
            yield reader

    async def close(self) -> None:
        """End every reader, and with them the streams of their clients."""
        readers, self._readers = list(self._readers.values()), {}
        for reader in readers:
            await reader.close()

    @asynccontextmanager
    async def _share(self, key: str, topic: str, read: Read, locate: Locate) -> AsyncIterator[SharedReader]:
        async with self._opening:
            if key not in self._readers:
                start = await self._find_end(key)
                self._readers[key] = SharedReader(
                    key or "feed", topic, self._app, read, locate, start, self._batch_bytes
                )
            reader = self._readers[key]
            reader.clients += 1
        try:
            yield reader
        finally:
            reader.clients -= 1
            if reader.clients == 0 and self._readers.get(key) is reader:
                del self._readers[key]
                await reader.close()

    async def _find_end(self, stream: str) -> str:
        if stream:
            newest = await self._app.store.read(stream, limit=1, backward=True)
            return newest[0].id if newest else ""
        items = await self._app.store.feed(None)
        return items[-1].cursor if items else ""

    async def _read_stream(self, stream: str, cursor: str, limit: int) -> Batch:
        events = await self._app.store.read(stream, after=cursor or None, limit=limit)
        return Batch(LiveEvent(locate_event(one.id), one.id, stream, one, encode_event(one)) for one in events)

    async def _read_feed(self, cursor: str, limit: int) -> Batch:
        items = await self._app.store.feed(cursor, limit)
        return Batch(
            LiveEvent(locate_feed(item.cursor), item.cursor, item.stream, item.event, encode_event(item.event))
            for item in items
        )
