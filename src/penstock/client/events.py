"""`client.events`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing
from typing import Any, Literal, overload

import msgspec

from ..app.subscribers import Subscriber, Subscribers, Unsubscribe
from ..app.views import StreamView
from ..commit.preview import Preview
from ..core.argument_checks import check_arguments
from ..core.event_tags import check_event_tags
from ..core.events import Event
from ..flows.reducer import RunView, TriggerView
from ..ports.store import FeedItem
from .connection import Connection, Page

LATEST = "latest"  # the cursor that stands for new events only
FEED_PAGE = 500


class _Emitted(msgspec.Struct):
    emitted: bool
    preview: Preview | None = None


class _Appended(msgspec.Struct):
    event: Event | None


class _Feed(msgspec.Struct):
    items: list[FeedItem]
    next: str | None = None


class _Envelope(msgspec.Struct):
    stream: str
    record: Event


@check_arguments
class Events:
    """Emit events, read streams, follow them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._subscribers = Subscribers()
        self._listening: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    @overload
    async def emit(
        self,
        kind: str,
        data: Any = None,
        *,
        run: str | None = None,
        key: str | None = None,
        tags: Collection[str] | None = None,
        dry_run: Literal[False] = False,
        version: int | Preview | None = None,
    ) -> bool: ...

    @overload
    async def emit(
        self,
        kind: str,
        data: Any = None,
        *,
        run: str | None = None,
        key: str | None = None,
        tags: Collection[str] | None = None,
        dry_run: Literal[True],
        version: int | Preview | None = None,
    ) -> Preview: ...

    @overload
    async def emit(
        self,
        kind: str,
        data: Any = None,
        *,
        run: str | None = None,
        key: str | None = None,
        tags: Collection[str] | None = None,
        dry_run: bool,
        version: int | Preview | None = None,
    ) -> bool | Preview: ...

    async def emit(
        self,
        kind: str,
        data: Any = None,
        *,
        run: str | None = None,
        key: str | None = None,
        tags: Collection[str] | None = None,
        dry_run: bool = False,
        version: int | Preview | None = None,
    ) -> bool | Preview:
        """Emit an event, globally or to one run. Return False if its key was used before: then nothing is emitted.

        Args:
            kind: Kind of the event: dotted words such as "order.paid".
            data: Any JSON value.
            run: Id of the run that receives it. Default: every run that waits for it, and flows with `start_on`.
            key: Idempotency key; an event with a key that was used before is not emitted.
            tags: Words to filter events by, such as ["audit", "eu"].
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """
        body = {"kind": kind, "data": data, "run": run, "key": key, "tags": check_event_tags(tags)}
        answer = await self._connection.act(_Emitted, "/api/_events", dry_run=dry_run, version=version, body=body)
        return answer.emitted if answer.preview is None else answer.preview

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
        tags: Collection[str] | None = None,
    ) -> Event | None:
        """Append an event to any stream and return it; None if the key was used before.

        Args:
            stream: Name of the stream, such as "nq:entity:user-7".
            kind: Kind of the event.
            data: Any JSON value.
            subject: What the event is about. Default: the stream's id.
            correlation_id: To find what belongs together.
            meta: More about the event: any JSON object.
            key: Idempotency key.
            tags: Words to filter events by, such as ["audit", "eu"].
        """
        answer = await self._connection.post(
            _Appended,
            "/api/_events/{}/{}/events",
            *_split(stream),
            kind=kind,
            data=data,
            subject=subject,
            correlationId=correlation_id,
            meta=meta,
            key=key,
            tags=check_event_tags(tags),
        )
        return answer.event

    async def read(
        self,
        stream: str,
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int = 100,
        backward: bool = False,
        tags: Collection[str] | None = None,
    ) -> list[Event]:
        """Return events of a stream. With `tags`, read it from the cursor on until `limit` events have them.

        Args:
            stream: Name of the stream, such as "nq:flow:order-7".
            after: Only events after this event id.
            before: Only events before this event id.
            limit: Maximum number of events.
            backward: Newest first.
            tags: Only events that have all these tags.
        """
        found: list[Event] = []
        options = {"backward": backward, "tag": check_event_tags(tags) or None}
        while True:
            page = await self._connection.get(
                Page[Event],
                "/api/_events/{}/{}/events",
                *_split(stream),
                after=after,
                before=before,
                limit=limit - len(found),
                **options,
            )
            found += page.items
            # The server reads a part of a long stream at a time: a page by tags may have few events or none.
            if not tags or page.next is None or len(found) == limit:
                return found
            after, before = (after, page.next) if backward else (page.next, before)

    async def subscribe(
        self, stream: str, *, after: str | None = None, tags: Collection[str] | None = None
    ) -> AsyncIterator[Event]:
        """Iterate over a stream, then follow it live without a gap, over reconnects.

        Args:
            stream: Name of the stream.
            after: Id of the last event seen. Default: from the beginning.
            tags: Only events that have all these tags.
        """
        messages = self._connection.follow(
            "/api/_events/{}/{}/stream", *_split(stream), after=after or "", tag=check_event_tags(tags) or None
        )
        async with aclosing(messages):
            async for message in messages:
                yield msgspec.json.decode(message.data, type=Event)

    async def read_all(self, stream: str) -> list[Event]:
        """Return a whole stream, read page by page.

        Args:
            stream: Name of the stream.
        """
        events: list[Event] = []
        while page := await self.read(stream, after=events[-1].id if events else None, limit=1000):
            events += page
        return events

    async def streams(self, type: str, *, before: str | None = None, limit: int = 50) -> list[StreamView]:
        """Return the streams of a type, newest first.

        Args:
            type: Type of the streams: flow, trigger, webhook, entity, queue or another kind of runs.
            before: Id of the last stream of the page before.
            limit: Maximum number of streams.
        """
        page = await self._connection.get(Page[StreamView], "/api/_events/{}/streams", type, before=before, limit=limit)
        return page.items

    async def state(self, type: str, id: str) -> Any:
        """Return the folded state of a run (a RunView) or a trigger (a TriggerView).

        Args:
            type: Type of the stream: flow or another kind of runs, or trigger.
            id: Id of the stream.
        """
        kind: Any = TriggerView if type == "trigger" else RunView
        return await self._connection.get(kind, "/api/_events/{}/{}", type, id)

    async def feed(
        self, *, after: str | None = None, follow: bool = False, tags: Collection[str] | None = None
    ) -> AsyncIterator[FeedItem]:
        """Iterate over all events of all streams in the order of their commits, each with its stream and its cursor.

        Args:
            after: Cursor of the last item seen, or "latest" for new events only. Default: from the first event.
            follow: Wait for new events instead of ending.
            tags: Only events that have all these tags.
        """
        cursor, tag = after or "", check_event_tags(tags) or None
        while cursor != LATEST:
            page = await self._connection.get(_Feed, "/api/_events", after=cursor, limit=FEED_PAGE, tag=tag)
            for item in page.items:
                yield item
            if page.next in (None, cursor):  # a page without items is not the end: the server may have left some out
                break
            cursor = page.next or cursor
        if follow:
            start = None if cursor == LATEST else cursor
            async with aclosing(self._connection.follow("/api/_events/stream", after=start, tag=tag)) as messages:
                async for message in messages:
                    live = msgspec.json.decode(message.data, type=_Envelope)
                    yield FeedItem(message.id, live.stream, live.record)

    async def on_kind(self, kind: str, handler: Subscriber) -> Unsubscribe:
        """Call a function for every event of a kind, in any stream, from now on. Return a function that stops it.

        Args:
            kind: Kind of the events, such as "order.paid".
            handler: Function of the event, async or not.
        """
        await self._start_listening()
        return self._subscribers.add_for_kind(kind, handler)

    async def on_subject(self, subject: str, handler: Subscriber) -> Unsubscribe:
        """Call a function for every event about a run or job id from now on. Return a function that stops it.

        Args:
            subject: Id of the run or the job.
            handler: Function of the event, async or not.
        """
        await self._start_listening()
        return self._subscribers.add_for_subject(subject, handler)

    async def close(self) -> None:
        """Stop the subscriptions. `Client.close` does it."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait((self._listening,))
            self._listening = None

    async def _start_listening(self) -> None:
        """Follow all events, and wait until the server does: none after this call is missed."""
        async with self._starting:
            if self._listening is not None and self._listening.done():
                self._listening = None
            if self._listening is not None:
                return
            opened = asyncio.Event()
            task = asyncio.create_task(self._listen(opened), name="penstock-client-events")
            opening = asyncio.create_task(opened.wait())
            try:
                await asyncio.wait((task, opening), return_when=asyncio.FIRST_COMPLETED)
            finally:
                opening.cancel()
                if not opened.is_set():
                    task.cancel()
            if task.done():
                await task  # it raises what the server refused
            self._listening = task

    async def _listen(self, opened: asyncio.Event) -> None:
        messages = self._connection.follow("/api/_events/stream", after=None, opened=opened)
        async with aclosing(messages):
            async for message in messages:
                await self._subscribers.notify(msgspec.json.decode(message.data, type=_Envelope).record)


def _split(stream: str) -> tuple[str, str]:
    _, _, rest = stream.partition(":")
    type_, _, id_ = rest.partition(":")
    return type_, id_ or "-"
