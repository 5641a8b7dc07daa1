"""`/api/_queue`: queues and their counts; pause, resume, drain."""

from __future__ import annotations

import msgspec

from ...app.app import App
from ...app.views import QueueMinute, QueueView
from ..endpoints import Body, Query, Routes

routes = Routes("queues")


class QueueQuery(Query):
    """Which queues to list."""

    internal: bool = False  # include the queue on which events are delivered


class RatesQuery(Query):
    """How far to look back."""

    since: float | str = "1h"


class Drained(msgspec.Struct):
    """How many jobs were deleted."""

    removed: int


class DrainBody(Body):
    """What to delete."""

    delayed: bool = False  # delete delayed jobs too


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
