"""`app.events`: emit and append events, read streams, subscribe to them."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ..commit.command_sink import CommandSink
from ..commit.committer import CommitRequest
from ..commit.preview import Preview, run_planned
from ..commit.runtime import Runtime
from ..core.argument_checks import check_arguments, check_event_key, check_optional_text
from ..core.clock import to_iso
from ..core.errors import BadArgument
from ..core.event_tags import add_tags, check_event_tags
from ..core.events import Event, EventBody, check_kind, decode_event, describe_unreadable
from ..core.outage_retry import OutageRetry
from ..core.payload import pack, unpack
from ..core.text import shorten
from ..core.trace_context import current_trace
from ..ports.store import FeedItem
from ..ports.unit import Committed, NewEvent, Refused, Unit
from .arguments import check_function
from .snapshots import TRIGGER_REDUCER, Reducer
from .subscribers import Subscriber, Subscribers, Unsubscribe
from .tagged_events import read_tagged, select_tagged
from .views import StreamView

if TYPE_CHECKING:
    from .app import App

log = logging.getLogger("penstock.events")

LATEST = "latest"  # the cursor that stands for new events only
FEED_PAGE = 500


class EventAppender:
    """Appends events to streams through one sink."""

    def __init__(self, runtime: Runtime, sink: CommandSink) -> None:
        self._runtime = runtime
        self._sink = sink

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
    ) -> tuple[bool, Event | None]:
        """Append an event. Return whether it is new, because its key was not used before, and the event if its
        position is known."""
        bodies = self._runtime.bodies
        name = bodies.check(stream)
        check_kind(kind)
        check_optional_text(subject, "the subject")
        check_optional_text(correlation_id, "the correlation id")
        check_event_key(key)
        if meta is not None and not isinstance(meta, Mapping):
            raise BadArgument(f"meta must be a JSON object, such as {{'by': 'ada'}}, got {shorten(meta)}")
        more = add_tags(unpack(pack(meta or {}, "meta")), check_event_tags(tags)) or None
        if (trace := current_trace.get()) is not None and "traceparent" not in (more or {}):
            more = {**(more or {}), "traceparent": trace}
        raw = msgspec.Raw(pack(data, f"the data of {kind}"))
        type_, _, id_ = name.partition(":")[2].partition(":")
        trigger = id_ if type_ == "trigger" else None
        body = EventBody(kind, subject, trigger=trigger, correlation_id=correlation_id, data=raw, meta=more)
        encoded, original = bodies.encode_emitted(body)
        unit = Unit(self._runtime.new_unit_id(), events=[NewEvent(name, encoded, kind, original)], once_key=key)
        receipt = await self._sink.submit(CommitRequest(lambda _v, _r: unit))
        if not isinstance(receipt, Committed) or receipt.repeated:
            return not isinstance(receipt, Refused), None
        ms, seq = receipt.events[0]
        return True, decode_event(name, seq, ms, encoded)


@check_arguments
class Events:
    """Streams by name (`nq:flow:<run>`, `nq:queue:<queue>`, `nq:global`, …) and subscriptions within this process."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._store = app.store
        self._bodies = app._bodies
        self._subscribers = Subscribers()
        self._listening: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def emit(
        self,
        kind: str,
        data: Any = None,
        *,
        run: str | None = None,
        key: str | None = None,
        tags: Collection[str] | None = None,
        tx: Any = None,
        dry_run: bool = False,
        version: int | Preview | None = None,
    ) -> bool | Preview | None:
        """Emit an event, globally or to one run. Return False if its key was used before: then nothing is emitted.

        It resolves the waits that match it, also those that are registered later, and starts what listens to it. With
        `tx`, return None: whether the key was used is known when the transaction commits.

        Args:
            kind: Kind of the event: dotted words such as "order.paid".
            data: Any JSON value.
            run: Id of the run that receives it. Default: every run that waits for it, and flows with `start_on`.
            key: Idempotency key; an event with a key that was used before is not emitted.
            tags: Words to filter events by, such as ["audit", "eu"].
            tx: A connection or session of your own; the event is emitted when its transaction commits.
            dry_run: Write nothing, and return a Preview: the event, the steps of the run that it would start, the job
                that delivers it, the waits that it would resolve and the flows that it would start.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """
        if dry_run or version is not None:
            if tx is not None:
                raise BadArgument(
                    "dry_run= and version= cannot be used with tx=: the result is known only when the transaction "
                    "commits"
                )
            direct = self._app._transactions.direct
            is_new, preview = await run_planned(
                self._store,
                run,
                dry_run,
                version,
                lambda: direct.emit(kind, data, run, key, tags),
                self._app._delivery_preview.add_to,
            )
            return is_new if preview is None else preview
        is_new = await self._app._transactions.write(tx, lambda writers: writers.emit(kind, data, run, key, tags))
        self._app._engine.hint_unheard(kind)
        return is_new if tx is None else None

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
        """Append an event to any stream and return it.

        Return None if the key was used before, or if the store's first reply was lost.

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
        _, event = await self._app._transactions.direct.events.append(
            stream, kind, data, subject=subject, correlation_id=correlation_id, meta=meta, key=key, tags=tags
        )
        return event

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
            stream: Name of the stream.
            after: Only events after this event id.
            before: Only events before this event id.
            limit: Maximum number of events.
            backward: Newest first.
            tags: Only events that have all these tags.
        """
        name, wanted = self._bodies.check(stream), check_event_tags(tags)
        if not wanted:
            return await self._store.read(name, after=after, before=before, limit=limit, backward=backward)
        found, _ = await read_tagged(self._store, name, wanted, after, before, limit, backward)
        return found

    async def read_all(self, stream: str) -> list[Event]:
        """Return a whole stream, read page by page.

        Args:
            stream: Name of the stream.
        """
        events: list[Event] = []
        while page := await self.read(stream, after=events[-1].id if events else None, limit=1000):
            events += page
        return events

    def subscribe(
        self, stream: str, *, after: str | None = None, tags: Collection[str] | None = None
    ) -> AsyncIterator[Event]:
        """Iterate over a stream, then follow it live without a gap.

        Args:
            stream: Name of the stream.
            after: Id of the last event seen. Default: from the beginning.
            tags: Only events that have all these tags.
        """
        events = self._store.tail(self._bodies.check(stream), after=after)
        return select_tagged(events, wanted) if (wanted := check_event_tags(tags)) else events

    async def streams(self, type: str, *, before: str | None = None, limit: int = 50) -> list[StreamView]:
        """Return the streams of a type, the last created first.

        Args:
            type: flow, trigger, webhook, entity, queue, or another kind of runs.
            before: Name of the last stream of the page before.
            limit: Maximum number of streams.
        """
        prefix = f"{self._bodies.namespace}:{self._bodies.check_type(type)}:"
        rows = await self._store.newest_streams(prefix, before=before, limit=limit)
        return [StreamView(row.name, type, row.name.removeprefix(prefix), row.seq, to_iso(row.ms)) for row in rows]

    async def state(
        self, type: str, id: str, reducer: Callable[[Any, Event], Any] | None = None, initial: Any = None
    ) -> Any:
        """Fold a stream of any type into its state.

        The state is kept for a minute since its last use, so that the next call reads and folds only new events. It is
        never returned without a look at the store.

        Args:
            type: Type of the stream: flow, trigger, webhook, entity, queue, or another kind of runs.
            id: Id of the stream.
            reducer: Function of the state and an event that returns the next state. Default: the run's view for runs,
                as `app.runs.get` shows it, and a `TriggerView` for triggers.
            initial: The state of an empty stream: any JSON value.
        """
        stream = self._bodies.check(self._bodies.stream_name(self._bodies.check_type(type), id))
        if reducer is not None:
            check_function(reducer, "reducer", "of the state and an event")
            new = partial(copy.deepcopy, initial)
            return await self._app._snapshots.fold(stream, Reducer((reducer, pack(initial, "initial")), new, reducer))
        if type == "trigger":
            return await self._app._snapshots.fold(stream, TRIGGER_REDUCER)
        if type in self._app._engines.run_kinds:
            return await self._app.runs.get(id)
        raise BadArgument(
            f"streams of type {type!r} have no reducer of their own; pass reducer=, a function of state and event"
        )

    def feed(
        self, *, after: str | None = None, follow: bool = False, tags: Collection[str] | None = None
    ) -> AsyncIterator[FeedItem]:
        """Iterate over all events of all streams in the order of their commits, each with its stream and its cursor.

        No event is left out, however many processes write: a reader that saves the cursor of the last item it has
        handled continues there. Events that retention has removed meanwhile are missing. Only the store that
        returned a cursor can read it.

        Args:
            after: Cursor of the last item seen, or "latest" for new events only. Default: from the first event.
            follow: Wait for new events instead of ending.
            tags: Only events that have all these tags.
        """
        items = self._feed(after, follow)
        return select_tagged(items, wanted) if (wanted := check_event_tags(tags)) else items

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
        """Stop the subscriptions. `App.close` does it."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait((self._listening,))
            self._listening = None

    async def _feed(self, after: str | None, follow: bool) -> AsyncIterator[FeedItem]:
        retry = OutageRetry("the feed of all events")
        cursor = after or ""
        if after == LATEST:
            newest = await retry.call(self._store.feed, None)
            cursor = newest[-1].cursor if newest else ""
        with self._store.signals.listen("events") as listener:  # before the read: nothing is missed between the two
            while True:
                items = await retry.call(self._store.feed, cursor, FEED_PAGE)
                for item in items:
                    cursor = item.cursor
                    yield item
                if len(items) == FEED_PAGE:
                    continue
                if not follow:
                    return
                await listener.wait(1.0)

    async def _start_listening(self) -> None:
        async with self._starting:
            if self._listening is None:
                newest = await self._store.feed(None)
                cursor = newest[-1].cursor if newest else ""
                self._listening = asyncio.create_task(self._listen(cursor), name="penstock-events")

    async def _listen(self, cursor: str) -> None:
        # No caller awaits this task. If it ended, subscribers would silently receive nothing.
        outage_retry = OutageRetry("subscribers by kind and subject", has_answered=True, retry_on=Exception)
        with self._store.signals.listen("events") as listener:
            while True:
                items = await outage_retry.call(self._store.feed, cursor)
                for item in items:
                    cursor = item.cursor
                    if item.event.is_unreadable:
                        log.warning("%s", describe_unreadable(item.stream, item.event))
                    await self._subscribers.notify(item.event)
                if not items:
                    await listener.wait(1.0)


async def check_then_follow(check: Callable[[], Awaitable[Any]], events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """Iterate over events after a check: following a stream that will never exist would wait for ever."""
    try:
        await check()
        async for event in events:
            yield event
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
