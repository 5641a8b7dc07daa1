"""`/api/_schedules`: schedules; add, pause, resume, remove, run now."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from ...app.app import App
from ...app.views import ScheduleView
from ..endpoints import Body, Query, Routes
from .jobs import Added, Done

routes = Routes("schedules")


class ScheduleBody(Body):
    """When a schedule fires and what it starts."""

    flow: str | None = None
    queue: str | None = None
    name: str | None = None
    input: Any = None
    every: float | str | None = None
    cron: str | None = None
    tz: str = "UTC"
    at: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None
    limit: int | None = None
    overlap: Literal["allow", "skip", "queue", "replace"] = "allow"
    catch_up: Literal["one", "all", "none"] = "one"
    priority: int | None = None
    order_key: str | None = None


class SlotQuery(Query):
    """How many slots to return."""

    count: int = 10


class ForeignQuery(Query):
    """Whose schedule."""

    queue: str | None = None  # the queue of a job scheduler of another program


class Slots(msgspec.Struct):
    """When a schedule fires next."""

    slots: list[str]


class Deactivated(msgspec.Struct):
    """The schedules that were stopped."""

    ids: list[str]


@routes.get("/api/_schedules")
async def list_schedules(app: App) -> list[ScheduleView]:
    """List schedules."""
    return await app.schedules.list()


@routes.get("/api/_schedules/{id}")
async def get_schedule(app: App, id: str) -> ScheduleView:
    """Return a schedule."""
    return await app.schedules.get(id)


@routes.put("/api/_schedules/{id}")
async def put_schedule(app: App, id: str, body: ScheduleBody) -> ScheduleView:
    """Create or replace a schedule."""
    return await app.schedules.add(
        id,
        flow=body.flow,
        queue=body.queue,
        name=body.name,
        input=body.input,
        every=body.every,
        cron=body.cron,
        tz=body.tz,
        at=body.at,
        start=body.start,
        end=body.end,
        limit=body.limit,
        overlap=body.overlap,
        catch_up=body.catch_up,
        priority=body.priority,
        order_key=body.order_key,
    )


@routes.delete("/api/_schedules/{id}")
async def remove_schedule(app: App, id: str, query: ForeignQuery) -> Done:
    """Remove a schedule, or a job scheduler of another program on Redis."""
    return Done(await app.schedules.remove(id, queue=query.queue))


@routes.get("/api/_schedules/{id}/next")
async def list_next_slots(app: App, id: str, query: SlotQuery) -> Slots:
    """Return when a schedule fires next. A paused schedule has no next slot."""
    return Slots(list(await app.schedules.next_slots(id, count=query.count)))


@routes.post("/api/_flow/{flow}/schedules/deactivate")
async def deactivate_schedules(app: App, flow: str) -> Deactivated:
    """Stop all schedules of a flow: remove those that were added, pause those that the code declares."""
    return Deactivated(list(await app.schedules.deactivate(flow)))


@routes.post("/api/_schedules/{id}/pause")
async def pause_schedule(app: App, id: str) -> ScheduleView:
    """Pause a schedule: it does not fire until it is resumed."""
    return await app.schedules.pause(id)


@routes.post("/api/_schedules/{id}/resume")
async def resume_schedule(app: App, id: str) -> ScheduleView:
    """Resume a paused schedule with its next slot."""
    return await app.schedules.resume(id)


@routes.post("/api/_schedules/{id}/run", status=201)
async def run_schedule(app: App, id: str) -> Added:
    """Start what a schedule starts, now and besides its slots."""
    return Added(await app.schedules.run_now(id))
