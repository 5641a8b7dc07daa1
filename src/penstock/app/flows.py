"""`app.flows`: the flows in the loaded code, and their diagrams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..core.argument_checks import check_arguments
from ..flows.diagram_data import describe_diagram
from ..handlers.registry import Flow, find_flow

if TYPE_CHECKING:
    from .app import App


@check_arguments
class Flows:
    """The flows in the loaded code. It needs no store."""

    def __init__(self, app: App) -> None:
        self._app = app

    def list(self) -> list[dict[str, Any]]:
        """Return all flows: name, version, first step, the kinds they accept, and their steps."""
        return [flow_to_dict(flow) for flow in self._app.registry.flows.values()]

    def get(self, flow: str | Callable[..., Any]) -> dict[str, Any]:
        """Return one flow. Raise UnknownFlow if there is none.

        Args:
            flow: A flow's name, or the function marked with `@flow`.
        """
        return flow_to_dict(find_flow(self._app.registry, flow))

    def diagram(self, flow: str | Callable[..., Any]) -> dict[str, Any]:
        """Return a flow as a graph, `{"nodes": […], "edges": […]}`, as `penstock diagram --json` prints it.

        A node has `id`, `type` (`step` or `await-step`), `emits`, `subscriptions` and, if the step declares a wait,
        `await` with its `type`, `eventKind` and `timeout`. An edge has `from`, `to`, `label` (the kind of event),
        `type` (`emit` or `await`) and, where they apply, `condition` (the text of `when`) and `timeout`. Times are
        milliseconds. A flow that a step calls or starts is a node of type `flow`, with an edge of type `call`; it is
        found in the step's source, if `ctx.call` has its name or its function there.

        Args:
            flow: A flow's name, or the function marked with `@flow`.
        """
        return describe_diagram(find_flow(self._app.registry, flow))


def flow_to_dict(flow: Flow) -> dict[str, Any]:
    """Return a flow as `flows --json` prints it."""
    steps = {
        name: {
            "queue": step.handler.queue_name,
            "on": [*step.kinds],
            "mode": step.mode if step.kinds else None,
            "emits": [*step.emits] if step.emits is not None else None,
            "attempts": step.handler.retry.attempts,
            "compensation": step.compensation,
            "file": step.handler.where,
        }
        for name, step in flow.steps.items()
    }
    definition = flow.definition
    return {
        "flow": flow.name,
        "version": definition.version,
        "entry": definition.entry.name,
        "accepts": [*definition.accepts],
        "steps": steps,
    }
