"""Waits for the ends of events. Those that wait for one entity share one reader of its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import islice

from ..core.events import Event
from ..core.ids import event_seq
from ..ports.store import Store
from ..stores.tail import follow

MAX_ENDED = 10_000  # ends that a reader remembers for those that ask later
MAX_PAUSE_S = 1.0  # between two reads while other events come first
PACE_EVENTS = 8  # the latest ends, which show how fast events are handled
ENDS = ("entity.transitioned", "entity.kept", "entity.refused", "entity.failed")


class _Reader:
    """One task that follows a stream, and the futures of those that wait."""

    def __init__(self, first: int) -> None:
        self.first = first  # the sequence it reads after
        self.waiting: dict[int, list[asyncio.Future[Event]]] = {}
        self.ended: dict[int, Event] = {}
        self.task: asyncio.Task[None] | None = None

    @property
    def pause_s(self) -> float:
        """How long to wait before the next read: half of the time that the events in front will take, at their pace.

        The events of an entity are handled one after the other, so a read after each of them would find nothing."""
        latest = list(islice(reversed(self.ended.items()), PACE_EVENTS))
        if len(latest) < 2 or not self.waiting:
            return 0.0
        in_front = min(self.waiting) - latest[0][0] - 1
        pace_s = (_ended_ms(latest[0][1]) - _ended_ms(latest[-1][1])) / 1000 / (len(latest) - 1)
        return min(max(in_front, 0) * pace_s / 2, MAX_PAUSE_S)

    def remember(self, n: int, event: Event) -> None:
        """Keep the end of an event, and forget the oldest one beyond the limit: who asks for it reads for itself."""
        self.ended[n] = event
        if len(self.ended) > MAX_ENDED:
            oldest = next(iter(self.ended))
            self.first = event_seq(self.ended.pop(oldest).id)


def _ended_ms(event: Event) -> int:
    return int(event.id.partition("-")[0])


class EntityResults:
    """Finds the event that ends an emitted one, by its number."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readers: dict[str, _Reader] = {}

    async def wait(self, stream: str, n: int, cursor: str | None) -> Event:
        """Return the event that ends event `n`; `cursor` is where it arrived."""
        reader = self._readers.get(stream)
        start = event_seq(cursor) if cursor is not None else 0
        if reader is None or start < reader.first:
            own = _Reader(start)
            own.task = asyncio.create_task(self._follow(stream, cursor, own))
            self._readers[stream] = reader = own
        if n in reader.ended:
            return reader.ended[n]
        future: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        reader.waiting.setdefault(n, []).append(future)
        try:
            return await future
        finally:
            reader.waiting[n].remove(future)
            if not reader.waiting[n]:
                del reader.waiting[n]
            if not reader.waiting and reader.task is not None:
                reader.task.cancel()
                if self._readers.get(stream) is reader:
                    del self._readers[stream]

    async def _follow(self, stream: str, cursor: str | None, reader: _Reader) -> None:
        async def read(stream: str, *, after: str | None, limit: int) -> list[Event]:
            if pause_s := reader.pause_s:
                await asyncio.sleep(pause_s)
            return await self._store.read(stream, after=after, limit=limit)

        events = follow(read, self._store.signals, stream, cursor)
        try:
            async for event in events:
                n = (event.meta or {}).get("n")
                if event.kind in ENDS and isinstance(n, int):
                    reader.remember(n, event)
                    for future in reader.waiting.get(n, ()):
                        if not future.done():
                            future.set_result(event)
        except Exception as problem:
            for futures in reader.waiting.values():
                for future in futures:
                    if not future.done():
                        future.set_exception(problem)
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()
