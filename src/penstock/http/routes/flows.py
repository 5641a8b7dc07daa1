"""`/api/_flow`: flows with their steps and diagrams."""

from __future__ import annotations

from typing import Any

from ...app.app import App
from ..endpoints import Routes

routes = Routes("flows")


@routes.get("/api/_flow")
async def list_flows(app: App) -> list[dict[str, Any]]:
    """List the flows of the loaded code with their steps."""
    return [show_flow(app, name) for name in app.registry.flows]


@routes.get("/api/_flow/{flow}")
async def get_flow(app: App, flow: str) -> dict[str, Any]:
    """Return a flow with its steps, their queues, what they listen to and emit, and the schema of its input."""
    return show_flow(app, flow)


@routes.get("/api/_flow/{flow}/diagram")
async def get_flow_diagram(app: App, flow: str) -> dict[str, Any]:
    """Return a flow as a graph: `nodes` and `edges`, with conditions and timeouts."""
    return app.flows.diagram(flow)


def show_flow(app: App, name: str) -> dict[str, Any]:
    """Return a flow as `app.flows.get` does, with the JSON schema of its input."""
    from ...core.schemas import to_json_schema

    schema = app.registry.flow(name).definition.entry.handler.input_schema
    shown = to_json_schema(schema) if schema is not None else None
    return {"id": name, **app.flows.get(name), "inputSchema": shown}
