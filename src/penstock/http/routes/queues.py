"""`/api/_queue`: queues, their counts, limits and keys; pause, resume, drain."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from ...app.app import App
from ...app.views import QueueKeysView, QueueLimitsView, QueueMinute, QueueView
from ..endpoints import Body, Call, Limit, Query, Routes
from ..shared_reader import locate_event
from ..single_reader import SingleReader
from ..sse import EventStream
from .events import LiveQuery, follow_one, make_filter

routes = Routes("queues")


class QueueQuery(Query):
    """Which queues to list."""

    internal: bool = False  # include the queue on which events are delivered


class RatesQuery(Query):
    """How far to look back."""

    since: float | str = "1h"


class QueueEventQuery(LiveQuery):
    """What to follow, and from where."""

    shared: bool = False  # on Redis, with jobs that BullMQ workers of other programs run, from the first event kept


class Drained(msgspec.Struct):
    """How many jobs were deleted."""

    removed: int


class DrainBody(Body):
    """What to delete."""

    delayed: bool = False  # delete delayed jobs too


class KeysQuery(Query):
    """How many keys to return."""

    limit: Limit = 10


class LimitsBody(Body):
    """The limits to change; what is left out is as the handlers declare."""

    concurrency: int | None = None  # handlers at once in each worker
    max_active: int | None = None  # jobs at once over all workers
    rate_limit: str | None = None  # such as "100/1m"
    per_key: bool = False  # the rate limit applies to each rate key


@routes.get("/api/_queue")
async def list_queues(app: App, query: QueueQuery) -> list[QueueView]:
    """List queues with their counts by state, and the age of the job that is next in line."""
    return await app.queues.list(internal=query.internal)


@routes.get("/api/_queue/{queue}")
async def get_queue(app: App, queue: str) -> QueueView:
    """Return one queue with its counts by state."""
    return await app.queues._get(queue)


@routes.get("/api/_queue/{queue}/rates")
async def list_queue_rates(app: App, queue: str, query: RatesQuery) -> list[QueueMinute]:
    """Return what happened to the jobs of a queue, one row for each minute, oldest first. A week is kept."""
    return list(await app.queues.rates(queue, since=query.since))


@routes.get("/api/_queue/{queue}/events", is_stream=True)
async def follow_queue_events(app: App, call: Call, queue: str, query: QueueEventQuery) -> Response:
    """Follow the job events of a queue: its newest ones, then live ones. A client continues with `Last-Event-ID`."""
    stream = app._bodies.queue(queue)
    if query.shared or not await app.store.read(stream, limit=1):  # a removed queue may have events left
        await app.queues._get(queue)
    if not query.shared:
        return await follow_one(app, call, stream, query)
    after = call.request.headers.get("last-event-id", query.after) or ""
    locate_event(after)  # it is checked before the answer starts
    bodies = app._bodies
    reader = SingleReader(stream, lambda after: app.queues.events(queue, after=after, shared=True), bodies.redact_json)
    return EventStream(call, reader.share, after, wanted=make_filter(call, query))


@routes.post("/api/_queue/{queue}/pause")
async def pause_queue(app: App, queue: str) -> QueueView:
    """Stop handing out jobs of a queue. Running jobs end."""
    await app.queues.pause(queue)
    return await app.queues._get(queue)


@routes.post("/api/_queue/{queue}/resume")
async def resume_queue(app: App, queue: str) -> QueueView:
    """Hand out jobs of a paused queue again."""
    await app.queues.resume(queue)
    return await app.queues._get(queue)


@routes.post("/api/_queue/{queue}/drain")
async def drain_queue(app: App, queue: str, body: DrainBody) -> Drained:
    """Delete the waiting plain jobs of a queue."""
    return Drained(await app.queues.drain(queue, delayed=body.delayed))


@routes.get("/api/_queue/{queue}/keys")
async def list_queue_keys(app: App, queue: str, query: KeysQuery) -> QueueKeysView:
    """Return the order keys and rate keys of a queue with the most open jobs."""
    return await app.queues.top_keys(queue, limit=query.limit)


@routes.get("/api/_queue/{queue}/limits")
async def get_queue_limits(app: App, queue: str) -> QueueLimitsView:
    """Return the limits of a queue: what applies, what its handlers declare, and what was changed."""
    return await app.queues.limits(queue)


@routes.put("/api/_queue/{queue}/limits")
async def set_queue_limits(app: App, queue: str, body: LimitsBody) -> QueueLimitsView:
    """Change the limits of a queue while workers run. They follow within two seconds."""
    return await app.queues.set_limits(
        queue,
        concurrency=body.concurrency,
        max_active=body.max_active,
        rate_limit=body.rate_limit,
        per_key=body.per_key,
    )


@routes.delete("/api/_queue/{queue}/limits")
async def reset_queue_limits(app: App, queue: str) -> QueueLimitsView:
    """Return to the limits that the handlers of a queue declare."""
    return await app.queues.reset_limits(queue)
