"""Following what must be there: a stream nobody will ever write to would be waited on for ever."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from ..commit.committer import Intent
from ..commit.runtime import Runtime
from ..commit.sink import CommandSink
from ..core.errors import BadArgument
from ..core.events import Body, Event, check_kind, decode_event
from ..core.outage_retry import OutageRetry
from ..core.payload import pack
from ..ports.unit import Committed, NewEvent, Unit
from .arguments import text


async def once_known(check: Callable[[], Awaitable[Any]], events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """The events, after `check` has raised what there is to raise. They are closed with this."""
    try:
        await check()
        async for event in events:
            yield event
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()


log = logging.getLogger("penstock.events")

Hears = Callable[[Event], Awaitable[None] | None]
Unsubscribe = Callable[[], None]


class Events:
    """Streams by name (`nq:flow:<run>`, `nq:queue:<queue>`, `nq:global`, …) and in-process subscriptions."""

    def __init__(self, runtime: Runtime, sink: CommandSink) -> None:
        self._store = runtime.store
        self._sink = sink
        self._bodies = runtime.bodies
        self._unit_id = runtime.new_unit_id
        self._by_kind: dict[str, list[Hears]] = {}
        self._by_subject: dict[str, list[Hears]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()

    async def append(
        self,
        stream: str,
        kind: str,
        data: Any = None,
        *,
        subject: str | None = None,
        correlation_id: str | None = None,
        meta: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> Event | None:
        """Appends an event to any stream and gives it back.

        None when `key` was used before, or when the store's first answer was lost and its place with it.
        """
        name = self._bodies.check(stream)
        check_kind(kind)
        text(subject, "the subject")
        text(correlation_id, "the correlation id")
        if text(key, "the key") == "":
            raise BadArgument("key='': give a text by which the event is known, or none")
        raw = msgspec.Raw(pack(data, f"the data of {kind}"))
        type_, _, id_ = name.partition(":")[2].partition(":")
        trigger = id_ if type_ == "trigger" else None
        body = Body(kind, subject, trigger=trigger, correlation_id=correlation_id, data=raw, meta=meta)
        encoded = self._bodies.encode(body)
        unit = Unit(self._unit_id(), events=[NewEvent(name, encoded, kind)], once_key=key)
        receipt = await self._sink.submit(Intent(lambda _v, _r: unit))
        if not isinstance(receipt, Committed) or receipt.repeated:
            return None
        ms, seq = receipt.events[0]
        return decode_event(name, seq, ms, encoded)

    async def read(
        self,
        stream: str,
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int = 100,
        backward: bool = False,
    ) -> list[Event]:
        """Events between two cursors (event ids), oldest first or newest first."""
        return await self._store.read(
            self._bodies.check(stream), after=after, before=before, limit=limit, backward=backward
        )

    async def read_all(self, stream: str) -> list[Event]:
        """A whole stream, page by page."""
        events: list[Event] = []
        while page := await self.read(stream, after=events[-1].id if events else None, limit=1000):
            events += page
        return events

    def subscribe(self, stream: str, *, after: str | None = None) -> AsyncIterator[Event]:
        """Every event of a stream after the cursor (from the beginning without one), then live, without a gap."""
        return self._store.tail(self._bodies.check(stream), after=after)

    async def on_kind(self, kind: str, handler: Hears) -> Unsubscribe:
        """Calls `handler` for every event of a kind, of any stream, from now on; gives the way to stop."""
        return await self._add(self._by_kind, kind, handler)

    async def on_subject(self, subject: str, handler: Hears) -> Unsubscribe:
        """Calls `handler` for every event about a subject (a run id, a job id) from now on; gives the way to stop."""
        return await self._add(self._by_subject, subject, handler)

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait((self._listening,))
            self._listening = None

    async def _add(self, table: dict[str, list[Hears]], key: str, handler: Hears) -> Unsubscribe:
        async with self._beginning:
            if self._listening is None:
                newest = await self._store.feed(None)
                cursor = newest[-1].cursor if newest else ""
                self._listening = asyncio.create_task(self._listen(cursor), name="penstock-events")
        table.setdefault(key, []).append(handler)

        def stop() -> None:
            handlers = table.get(key, [])
            if handler in handlers:
                handlers.remove(handler)

        return stop

    async def _listen(self, cursor: str) -> None:
        # Nobody looks at this task: whatever befalls it, subscribers would just hear nothing any more.
        patience = OutageRetry("subscribers by kind and subject", begun=True, bears=Exception)
        with self._store.signals.listen("events") as listener:
            while True:
                items = await patience.call(self._store.feed, cursor)
                for item in items:
                    cursor = item.cursor
                    await self._tell(item.event)
                if not items:
                    await listener.wait(1.0)

    async def _tell(self, event: Event) -> None:
        for handler in (*self._by_subject.get(event.subject, ()), *self._by_kind.get(event.kind, ())):
            try:
                answer = handler(event)
                if inspect.isawaitable(answer):
                    await answer
            except Exception:
                log.exception("a subscriber to %s raised", event.kind)
            except asyncio.CancelledError:
                if (me := asyncio.current_task()) is not None and me.cancelling():
                    raise
                log.exception("a subscriber to %s waited for something that was cancelled", event.kind)
