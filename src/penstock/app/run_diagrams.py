"""The graph that a run goes through: of its dag's version, or of the trigger table that it was started with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..dags.diagram import build_dag_diagram, describe_dag_diagram
from ..flows.diagram import Diagram, build_diagram, build_pinned_diagram
from ..flows.diagram_data import describe_diagram, describe_pinned
from ..flows.run_record import decode as decode_record
from ..ports.unit import DAG, FLOW

if TYPE_CHECKING:
    from .app import App


async def read_run_diagram(app: App, id: str) -> tuple[Diagram, dict[str, Any]]:
    """Return the graph of a run, to draw and as data."""
    row = await app._run_reader.row_of_kind(id, "diagram", FLOW, DAG)
    id = row.id
    if row.kind == DAG:
        dag, version = await app.dags.of_run(id)
        return build_dag_diagram(dag), {**describe_dag_diagram(dag), "version": str(version), "isLoaded": True}
    record = decode_record(row.record, id)
    table = await app._engine.table(record)
    loaded = app.registry.flows.get(record.flow)
    if loaded is not None and loaded.table is table:
        return build_diagram(loaded), {**describe_diagram(loaded), "version": record.version, "isLoaded": True}
    described = describe_pinned(table, loaded)
    return build_pinned_diagram(table, loaded), {**described, "version": record.version, "isLoaded": False}
