"""`/api/_events`: streams, their events and their state; live by server-sent events; emit."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from ...app.app import App
from ...app.tagged_events import read_tagged
from ...app.views import RunSummary, StreamView
from ...commit.preview import Preview
from ...core.api_errors import ApiError, Forbidden
from ...core.event_tags import check_event_tags, has_tags
from ...core.events import Event
from ...core.text import shorten
from ...flows.reducer import RunView, TriggerView, reduce_trigger
from ...ports.unit import ENTITY
from ..audit import AUDIT, check_reader, hidden_stream
from ..endpoints import Body, Call, DryRunQuery, Limit, Query, Routes
from ..event_filter import EventFilter
from ..shared_reader import check_cursor
from ..sse import EventStream, envelope_frame, named_frame

routes = Routes("events")
BACKFILL_EVENTS = 100
MAX_BACKFILL_EVENTS = 1_000
MAX_SCANNED = 10_000  # events that one request reads to find those with a tag
GLOBAL = "global"


class EventQuery(Query):
    """Which events of a stream to return."""

    after: str | None = None
    before: str | None = None
    limit: Limit = 100
    backward: bool = False
    tag: list[str] = []  # only events that have all of them


class EventPage(msgspec.Struct):
    """A page of events. `next` is the cursor of the next page, or null."""

    items: list[Event]
    next: str | None = None


class FeedEvent(msgspec.Struct):
    """An event with its stream and its place in the feed."""

    cursor: str
    stream: str
    event: Event


class FeedQuery(Query):
    """Which part of the feed to return."""

    after: str = ""
    limit: Limit = 100
    tag: list[str] = []  # only events that have all of them


class FeedPage(msgspec.Struct):
    """A page of the feed. `next` is the `after` of the next page."""

    items: list[FeedEvent]
    next: str | None = None


class LiveQuery(Query):
    """What to follow, and from where."""

    after: str | None = None  # the cursor to continue after; the header Last-Event-ID wins
    backfill: int = BACKFILL_EVENTS  # newest events to send first, without a cursor
    snapshot: bool = False  # first send the folded state, then only what comes after it
    kind: list[str] = []
    step: list[str] = []
    flow: list[str] = []  # names of flows, or ids of runs
    stream: list[str] = []
    tag: list[str] = []  # only events that have all of them
    ticket: str | None = None  # instead of a token, for browsers


class EmitBody(Body):
    """An event to emit."""

    kind: str
    data: Any = None
    run: str | None = None
    key: str | None = None
    tags: list[str] = []


class Emitted(msgspec.Struct, omit_defaults=True):
    """Whether the event was emitted: not if its key was used before, nor in a dry run."""

    emitted: bool
    preview: Preview | None = None

    @property
    def existing(self) -> bool:
        """Whether nothing was made."""
        return not self.emitted


class AppendBody(Body):
    """An event to append to a stream."""

    kind: str
    data: Any = None
    subject: str | None = None
    correlation_id: str | None = None
    meta: dict[str, Any] | None = None
    key: str | None = None
    tags: list[str] = []


class Appended(msgspec.Struct):
    """The event as it is stored; null if its key was used before."""

    event: Event | None

    @property
    def existing(self) -> bool:
        """Whether nothing was made."""
        return self.event is None


class StreamQuery(Query):
    """Which streams to list."""

    name: str | None = None  # only runs of this flow
    before: str | None = None  # id of the last stream of the page before
    limit: Limit = 50


class PlainStreamQuery(Query):
    """Which streams to list."""

    before: str | None = None  # id of the last stream of the page before
    limit: Limit = 50


class StreamViews(msgspec.Struct):
    """A page of streams. `next` is the `before` of the next page, or null."""

    items: list[StreamView]
    next: str | None = None


class StreamItem(msgspec.Struct, rename="camel", omit_defaults=True):
    """A stream: its id within its type, and for a run its flow and status."""

    id: str
    stream: str
    last_event_at: str
    events: int | None = None  # sequence of its last event
    name: str | None = None
    status: str | None = None
    started_at: str | None = None


class StreamPage(msgspec.Struct):
    """A page of streams, newest first. `next` is the `before` of the next page, or null."""

    items: list[StreamItem]
    next: str | None = None


@routes.post("/api/_events", status=201, may_exist=True)
async def emit_event(app: App, query: DryRunQuery, body: EmitBody) -> Emitted:
    """Emit an event, globally or to one run."""
    done = await app.events.emit(
        body.kind,
        body.data,
        run=body.run,
        key=body.key,
        tags=body.tags,
        dry_run=query.dry_run,
        version=query.version,
    )
    return Emitted(False, done) if isinstance(done, Preview) else Emitted(bool(done))


@routes.get("/api/_events")
async def read_feed(app: App, call: Call, query: FeedQuery) -> FeedPage:
    """Return events of all streams in the order of their commits; only an admin sees those of the audit stream."""
    items = await app.store.feed(query.after, query.limit)
    hidden, tags = hidden_stream(app, call.caller), check_event_tags(query.tag)
    found = [
        FeedEvent(item.cursor, item.stream, item.event)
        for item in items
        if item.stream != hidden and (not tags or has_tags(item.event, tags))
    ]
    return FeedPage(found, items[-1].cursor if items else query.after or None)


@routes.get("/api/_events/stream", is_stream=True)
async def follow_feed(app: App, call: Call, query: LiveQuery) -> Response:
    """Follow the events of all streams live. Messages are `{v, stream, event, record}`; the cursor is the feed's."""
    readers = call.services.readers
    after = await _cursor(call, query, None)
    if after is None:
        newest = await app.store.feed(None)
        after = newest[-1].cursor if newest else ""
    wanted = make_filter(call, query, hidden_stream(app, call.caller))
    return EventStream(call, readers.feed, after, frame=envelope_frame, wanted=wanted)


@routes.get("/api/_events/{stream}")
async def read_named_stream(app: App, call: Call, stream: str, query: EventQuery) -> EventPage:
    """Return the events of a stream by its whole name, such as `nq:flow:order-7`."""
    return await read_page(app, check_reader(call.caller, app._bodies.check(stream)), query)


@routes.get("/api/_events/{stream:path}/tail", is_stream=True)
async def tail_named_stream(app: App, call: Call, stream: str, query: LiveQuery) -> Response:
    """Follow a stream by its whole name: its newest events, then live ones."""
    return await follow_one(app, call, check_reader(call.caller, app._bodies.check(stream)), query)


@routes.get("/api/_events/{type}/list")
async def list_streams(app: App, type: str, query: StreamQuery) -> StreamPage:
    """List the streams of a type, newest first. Runs have their flow and status, and can be listed by flow."""
    # Streams of entities also exist without an entity: events are appended to them.
    if type in app._engines.run_kinds and type != ENTITY:
        return await _list_runs(app, type, query)
    if query.name is not None:
        raise ApiError(f"streams of type {type[:50]!r} have no name; only runs are listed by ?name=")
    found = await app.events.streams(type, before=query.before, limit=query.limit)
    items = [StreamItem(one.id, one.name, one.last_event_at, one.events) for one in found]
    return StreamPage(items, items[-1].id if len(items) == query.limit else None)


@routes.get("/api/_events/{type}/streams")
async def list_stream_views(app: App, type: str, query: PlainStreamQuery) -> StreamViews:
    """List the streams of a type, newest first, each with the sequence of its last event."""
    found = await app.events.streams(type, before=query.before, limit=query.limit)
    return StreamViews(found, found[-1].id if len(found) == query.limit else None)


@routes.get("/api/_events/{type}/{id}")
async def read_stream_state(app: App, type: str, id: str) -> dict[str, Any]:
    """Return the state of a run (a RunView) or a trigger (a TriggerView), folded from its events."""
    state: dict[str, Any] = msgspec.to_builtins(await read_state(app, type, id))
    return state


@routes.get("/api/_events/{type}/{id:path}/events")
async def read_stream(app: App, call: Call, type: str, id: str, query: EventQuery) -> EventPage:
    """Return the events of a stream."""
    return await read_page(app, check_reader(call.caller, stream_name(app, type, id)), query)


@routes.post("/api/_events/{type}/{id:path}/events", status=201, may_exist=True)
async def append_event(app: App, type: str, id: str, body: AppendBody) -> Appended:
    """Append an event to a stream."""
    if type == AUDIT:
        raise Forbidden("the server writes the audit stream; use a stream of another type")
    return Appended(
        await app.events.append(
            stream_name(app, type, id),
            body.kind,
            body.data,
            subject=body.subject,
            correlation_id=body.correlation_id,
            meta=body.meta,
            key=body.key,
            tags=body.tags,
        )
    )


@routes.get("/api/_events/{type}/{id:path}/stream", is_stream=True)
async def follow_stream(app: App, call: Call, type: str, id: str, query: LiveQuery) -> Response:
    """Follow a stream: its newest events, then live ones. A client continues with `Last-Event-ID`."""
    return await follow_one(app, call, check_reader(call.caller, stream_name(app, type, id)), query)


async def follow_one(app: App, call: Call, stream: str, query: LiveQuery) -> Response:
    """Return the live events of one stream."""
    after, first = await _cursor(call, query, stream), []
    if query.snapshot and after is None:
        shown, after = await take_snapshot(app, stream)
        first = [named_frame("snapshot", shown, after or None)]
    elif after is None:
        after = await find_backfill(app, stream, query.backfill)
    readers = call.services.readers
    return EventStream(call, lambda: readers.stream(stream), after, wanted=make_filter(call, query), first=first)


async def read_page(app: App, stream: str, query: EventQuery) -> EventPage:
    """Return a page of a stream's events. One by tags may have few or none, and still a next page."""
    if tags := check_event_tags(query.tag):
        page = await read_tagged(
            app.store, stream, tags, query.after, query.before, query.limit, query.backward, MAX_SCANNED
        )
        return EventPage(*page)
    found = await app.events.read(
        stream, after=query.after, before=query.before, limit=query.limit, backward=query.backward
    )
    return EventPage(found, found[-1].id if len(found) == query.limit else None)


async def _list_runs(app: App, kind: str, query: StreamQuery) -> StreamPage:
    items: list[StreamItem] = []
    limit, before = query.limit, query.before
    while len(items) < limit:  # a page of runs may have few of this kind
        found = await app.runs.list(flow=query.name, before=before, limit=limit)
        items += [_show_run(app, one) for one in found if one.kind == kind]
        if len(found) < limit:
            return StreamPage(items[:limit], items[limit - 1].id if len(items) > limit else None)
        before = found[-1].id
    return StreamPage(items[:limit], items[limit - 1].id)


def _show_run(app: App, one: RunSummary) -> StreamItem:
    stream = app._bodies.run(one.kind, one.id)
    return StreamItem(one.id, stream, one.updated_at, name=one.flow, status=one.status, started_at=one.started_at)


def split_name(stream: str) -> tuple[str, str]:
    """Return type and id of a stream's name."""
    type_, _, id_ = stream.partition(":")[2].partition(":")
    return type_, id_


async def take_snapshot(app: App, stream: str) -> tuple[bytes, str]:
    """Return the folded state of a stream as JSON, without secrets, and the event to follow it after."""
    type, id = split_name(stream)
    if type == "trigger":
        events = await app.events.read_all(stream)
        state: RunView | TriggerView = reduce_trigger(events)
        last = events[-1].id if events else ""
    else:
        state = await read_state(app, type, id)
        last = getattr(state, "last_event", None) or ""
    return app._bodies.redact_json(msgspec.json.encode(state)), last


async def read_state(app: App, type: str, id: str) -> RunView | TriggerView:
    """Return the folded state of a run or a trigger."""
    if type == "trigger":
        return reduce_trigger(await app.events.read_all(stream_name(app, type, id)))
    if type in app._engines.run_kinds:
        return await app.runs.get(id)
    if ":" in type:  # the whole name of a stream whose id has a slash
        raise ApiError(f"no type {shorten(type, 50)}; for an id with a slash, use /api/_events/<type>/<id>/events")
    raise ApiError(
        f"streams of type {shorten(type, 50)} have no state; the path with /events at its end has the events"
    )


def stream_name(app: App, type: str, id: str) -> str:
    """Return the name of a stream by its type and id, or raise BadStream. There is one global stream."""
    if type == GLOBAL:
        return app._bodies.global_stream
    return app._bodies.check(app._bodies.stream_name(type, id))


async def find_backfill(app: App, stream: str, count: int) -> str:
    """Return the id of the event before the newest `count`."""
    if not 0 <= count <= MAX_BACKFILL_EVENTS:
        raise ApiError(f"backfill must be 0 to {MAX_BACKFILL_EVENTS:,}, got {count}")
    if count == 0:
        newest = await app.store.read(stream, limit=1, backward=True)
        return newest[0].id if newest else ""
    found = await app.store.read(stream, limit=count + 1, backward=True)
    return found[-1].id if len(found) > count else ""


async def _cursor(call: Call, query: LiveQuery, stream: str | None) -> str | None:
    """Return the cursor that a client continues after, or None. It is checked here, before the answer starts."""
    cursor = call.request.headers.get("last-event-id", query.after)
    if cursor is not None:
        await check_cursor(call.services.app.store, stream, cursor)
    return cursor


def make_filter(call: Call, query: LiveQuery, hidden: str | None = None) -> EventFilter:
    """Return the filter that a query asks for."""
    return EventFilter(
        call.services.flow_names,
        kinds=query.kind,
        steps=query.step,
        flows=query.flow,
        streams=query.stream,
        tags=query.tag,
        hidden=hidden,
    )
