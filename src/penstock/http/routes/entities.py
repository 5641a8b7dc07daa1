"""`/api/_entities`: entities: emit, wait, list, history, diagram."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from ...app.app import App
from ...app.entities import Emission, EntitySummary, EntityType
from ...entities.reducer import EntityView, TransitionView
from ...entities.urns import to_id
from ..endpoints import Body, Limit, Query, Routes
from .jobs import Done

routes = Routes("entities")


class EntityEventBody(Body):
    """An event, and how it is emitted. `urn` is for urns with a slash, which a path cannot have."""

    event: str
    payload: Any = None
    urn: str | None = None
    type: str | None = None
    key: str | None = None
    delay: float | str | None = None
    at: datetime | None = None


class NewEntityBody(Body):
    """The data and the type of a new entity."""

    data: Any = None
    urn: str | None = None
    type: str | None = None


class ReasonBody(Body):
    """Why, for people."""

    reason: str = ""


class EntityListQuery(Query):
    """Which entities, and which page of them."""

    type: str | None = None
    status: str | None = None
    before: str | None = None
    limit: Limit = 50


class EntityQuery(Query):
    """When: the id of an event, or a time."""

    at: str | None = None


class HistoryQuery(Query):
    """How many entries."""

    limit: Limit = 100


class EntityResultQuery(Query):
    """Which event: what its emission returned."""

    event: str
    urn: str | None = None
    n: int | None = None
    key: str | None = None
    job: str | None = None
    cursor: str | None = None
    refused: str | None = None
    timeout: float | str = "30s"


class EntityWaitQuery(Query):
    """Which state, or several with commas between them."""

    status: str
    urn: str | None = None
    timeout: float | str = "30s"


class EntityDiagramQuery(Query):
    """Whose state is marked, and the format: `mermaid`, `svg` or `json`."""

    urn: str | None = None
    format: Literal["mermaid", "svg", "json"] = "mermaid"


class EntityDiagram(msgspec.Struct):
    """A diagram: text, or a graph."""

    diagram: str | dict[str, Any]


class EmissionView(msgspec.Struct, rename="camel", omit_defaults=True):
    """An emitted event."""

    urn: str
    id: str
    event: str
    n: int | None = None
    is_new: bool = msgspec.field(default_factory=lambda: True)
    job: str | None = None
    key: str | None = None
    cursor: str | None = None
    refused: str | None = None


@routes.get("/api/_entity-types")
async def list_entity_types(app: App) -> list[EntityType]:
    """List the definitions of entities that the server has loaded."""
    return list(app.entities.types())


@routes.get("/api/_entity-types/{type}/counts")
async def count_entities(app: App, type: str) -> dict[str, int]:
    """Return how many entities of a type are in each state."""
    return await app.entities.counts(type)


@routes.get("/api/_entity-types/{type}/diagram")
async def draw_entity(app: App, type: str, query: EntityDiagramQuery) -> EntityDiagram:
    """Return the state machine of a type, with the state of an entity marked."""
    return EntityDiagram(await app.entities.diagram(type, urn=query.urn, format=query.format))


@routes.get("/api/_entities")
async def list_entities(app: App, query: EntityListQuery) -> list[EntitySummary]:
    """List entities, newest first."""
    options = {"type": query.type, "status": query.status, "before": query.before}
    return list(await app.entities.list(**options, limit=query.limit))


@routes.get("/api/_entities/{urn}")
async def get_entity(app: App, urn: str, query: EntityQuery) -> EntityView:
    """Return an entity as it is, or as it was after an event or at a time."""
    return await app.entities.get(urn, at=query.at)


@routes.put("/api/_entities/{urn}")
async def create_entity(app: App, urn: str, body: NewEntityBody) -> Done:
    """Create an entity in its initial state."""
    return Done(await app.entities.create(body.urn or urn, body.data, type=body.type))


@routes.get("/api/_entities/{urn}/history")
async def list_entity_history(app: App, urn: str, query: HistoryQuery) -> list[TransitionView]:
    """Return what events did to an entity, newest first."""
    return list(await app.entities.history(urn, limit=query.limit))


@routes.post("/api/_entities/{urn}/emit", status=201)
async def emit_to_entity(app: App, urn: str, body: EntityEventBody) -> EmissionView:
    """Emit an event to an entity. A urn without an entity gets a new one."""
    one = await app.entities.emit(
        body.urn or urn, body.event, body.payload, type=body.type, key=body.key, delay=body.delay, at=body.at
    )
    return view_emission(one)


@routes.get("/api/_entities/{urn}/result")
async def get_entity_result(app: App, urn: str, query: EntityResultQuery) -> TransitionView:
    """Wait until an event has been handled, and return what it did."""
    urn = query.urn or urn
    emission = Emission(urn, to_id(urn), query.event, query.n, True, query.job, query.key, query.cursor, query.refused)
    return await app.entities.result(emission, timeout=query.timeout)


@routes.get("/api/_entities/{urn}/wait")
async def wait_for_entity(app: App, urn: str, query: EntityWaitQuery) -> EntitySummary:
    """Wait until an entity is in a state, or in one of several."""
    return await app.entities.wait_for(query.urn or urn, query.status.split(","), timeout=query.timeout)


@routes.post("/api/_entities/{urn}/pause")
async def pause_entity(app: App, urn: str, body: ReasonBody) -> Done:
    """Pause an entity: its events wait."""
    return Done(await app.entities.pause(urn, reason=body.reason))


@routes.post("/api/_entities/{urn}/resume")
async def resume_entity(app: App, urn: str, body: ReasonBody) -> Done:
    """Resume a paused entity."""
    return Done(await app.entities.resume(urn, reason=body.reason))


def view_emission(one: Emission) -> EmissionView:
    """Return an emission as JSON-safe data."""
    return EmissionView(one.urn, one.id, one.event, one.n, one.is_new, one.job, one.key, one.cursor, one.refused)
