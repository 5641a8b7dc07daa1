"""`/api/_dags`: definitions of dags: list, register, compare, activate; start and retry their runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from ...app.app import App
from ...app.dags import DagComparison
from ...dags.breakers import BreakerState
from ...dags.catalog import DagSummary
from ...dags.definition import Dag, read_dag
from ...dags.warnings import DagWarning
from ..endpoints import Body, Query, Routes
from .jobs import Done, Started, show_started

routes = Routes("dags")


class DagBody(Body):
    """A definition, and what has changed in it."""

    dag: dict[str, Any]
    notes: str = ""


class VersionQuery(Query):
    """Which version; without one the newest."""

    version: int | None = None


class CompareQuery(Query):
    """Which two versions."""

    old: int
    new: int


class DagStartBody(Body):
    """The input of a run, and how it is started."""

    input: Any = None
    version: int | None = None
    key: str | None = None
    correlation_id: str | None = None
    priority: int | None = None
    delay: float | str | None = None
    at: datetime | None = None
    tags: dict[str, str] | None = None


class DagRetryBody(Body):
    """Which failed node to run again; without one every failed node."""

    node: str | None = None


class BreakerBody(Body):
    """Which circuit breaker."""

    type: str
    key: str = ""


class DagCheck(msgspec.Struct):
    """The warnings about a definition that has no mistakes."""

    warnings: list[DagWarning]


class DagOfRun(msgspec.Struct):
    """The definition that a run was started with."""

    dag: Dag
    version: int


class RetriedNodes(msgspec.Struct):
    """The new jobs of the failed nodes."""

    jobs: list[str]


@routes.get("/api/_dags")
async def list_dags(app: App) -> list[DagSummary]:
    """List dags with their versions."""
    return await app.dags.list()


@routes.get("/api/_dags/breakers")
async def list_breakers(app: App) -> list[BreakerState]:
    """List circuit breakers that have counted failures: closed, open or half-open."""
    return list(await app.dags.breakers())


@routes.post("/api/_dags/breakers/reset")
async def reset_breaker(app: App, body: BreakerBody) -> Done:
    """Close a circuit breaker."""
    return Done(await app.dags.reset_breaker(body.type, body.key))


@routes.get("/api/_dags/{id}")
async def describe_dag(app: App, id: str) -> DagSummary:
    """Return a dag's title, whether it is active, and its versions."""
    return await app.dags.describe(id)


@routes.put("/api/_dags/{id}")
async def put_dag(app: App, id: str, body: DagBody) -> DagSummary:
    """Check a definition and store it as the next version. The same definition again stores nothing."""
    return await app.dags.register(read_dag({**body.dag, "id": id}), notes=body.notes)


@routes.post("/api/_dags/check", is_command=False)
async def check_dag(app: App, body: DagBody) -> DagCheck:
    """Check a definition without storing it, and return its warnings."""
    await app.dags.list()  # those that other processes have registered are no unknown ones
    return DagCheck(app.dags.check(body.dag))


@routes.get("/api/_dags/{id}/definition")
async def get_dag(app: App, id: str, query: VersionQuery) -> Dag:
    """Return a definition."""
    return await app.dags.get(id, version=query.version)


@routes.get("/api/_dags/{id}/diagram")
async def get_dag_diagram(app: App, id: str, query: VersionQuery) -> dict[str, Any]:
    """Return a dag as a graph: `nodes` and `edges`."""
    return await app.dags.diagram(id, version=query.version)


@routes.get("/api/_dags/{id}/compare")
async def compare_dags(app: App, id: str, query: CompareQuery) -> DagComparison:
    """Return what has changed from one version to another."""
    return await app.dags.compare(id, query.old, query.new)


@routes.post("/api/_dags/{id}/activate")
async def activate_dag(app: App, id: str) -> Done:
    """Activate a dag that was deactivated."""
    return Done(await app.dags.activate(id))


@routes.post("/api/_dags/{id}/deactivate")
async def deactivate_dag(app: App, id: str) -> Done:
    """Deactivate a dag: no more runs of it start, and its schedules are removed."""
    return Done(await app.dags.deactivate(id))


@routes.post("/api/_dags/{id}/start", status=201, may_exist=True)
async def start_dag(app: App, id: str, body: DagStartBody) -> Started:
    """Start a run of a dag. With a key that was used before, the answer is 200 with `existing`, and nothing starts."""
    run = await app.dags.start(
        id,
        body.input,
        version=body.version,
        key=body.key,
        correlation_id=body.correlation_id,
        priority=body.priority,
        delay=body.delay,
        at=body.at,
        tags=body.tags,
    )
    return show_started(run)


@routes.get("/api/_dags/runs/{run}/definition")
async def get_dag_of_run(app: App, run: str) -> DagOfRun:
    """Return the definition that a run was started with."""
    return DagOfRun(*await app.dags.of_run(run))


@routes.post("/api/_dags/runs/{run}/retry")
async def retry_dag_run(app: App, run: str, body: DagRetryBody) -> RetriedNodes:
    """Run the failed nodes of a run again. Nodes that completed are not run again."""
    return RetriedNodes(list(await app.dags.retry(run, node=body.node)))
