"""A flow's diagram as data: nodes and edges, for tools that draw it themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..core.durations import to_ms
from ..durable.declared_waits import Await
from ..handlers.decorators import StepDefinition
from ..handlers.registry import Flow
from ..handlers.subscriptions import Subscription
from ..handlers.trigger_table import TriggerTable
from .condition_text import show_condition
from .diagram import OUTSIDE, WAIT, Edge, build_diagram, build_pinned_diagram

_AWAIT_KEYS = ("type", "eventKind", "timeout")


def describe_diagram(flow: Flow) -> dict[str, Any]:
    """Return `{nodes, edges}` of a flow, JSON-safe. Times are milliseconds, conditions are text.

    An edge of type `emit` is an event that starts a step, one of type `await` a wait that a step declares. One of type
    `call` leads to a node of type `flow`: another flow that the step calls or starts. An edge without a type leads to
    the step that compensates another, or that takes over when a wait expires.
    """
    diagram = build_diagram(flow)
    edges = [_describe_edge(flow, edge) for edge in diagram.edges if edge.start != OUTSIDE]
    called = [{"id": name, "type": "flow"} for name, node in diagram.nodes.items() if node.is_flow]
    return {
        "nodes": [*(_describe_node(flow, name, step) for name, step in flow.steps.items()), *called],
        "edges": [*edges, *_await_edges(flow)],
    }


def describe_pinned(table: TriggerTable, loaded: Flow | None) -> dict[str, Any]:
    """Return `{nodes, edges}` of a trigger table that a run was started with and the loaded code no longer has."""
    diagram = build_pinned_diagram(table, loaded)
    return {
        "nodes": [
            {
                "id": name,
                "type": "step",
                "emits": [],
                "subscriptions": [{"eventKind": kind} for kind in table.steps[name].kinds],
            }
            for name in diagram.nodes
        ],
        "edges": [
            {"from": edge.start, "to": edge.end, "label": edge.label}
            | ({"type": "emit"} if edge.kind == "may_emit" else {})
            for edge in diagram.edges
        ],
    }


def _describe_node(flow: Flow, name: str, step: StepDefinition) -> dict[str, Any]:
    wait = step.handler.wait
    node: dict[str, Any] = {"id": name, "type": "step" if wait is None else "await-step"}
    if wait is not None:
        node["await"] = _describe_await(wait)
    node["emits"] = list(step.emits or ())
    starts = flow.definition.start_on if step is flow.definition.entry else ()
    node["subscriptions"] = [_describe_subscription(one) for one in (*step.subscriptions, *starts)]
    return node


def _describe_await(wait: Await) -> dict[str, Any]:
    shown = wait.describe()
    return {key: shown[key] for key in _AWAIT_KEYS if key in shown}


def _describe_subscription(subscription: Subscription) -> dict[str, str]:
    shown = {"eventKind": subscription.kind}
    if subscription.when is not None:
        shown["when"] = show_condition(subscription.when)
    return shown


def _describe_edge(flow: Flow, edge: Edge) -> dict[str, Any]:
    shown: dict[str, Any] = {"from": edge.start, "to": edge.end, "label": edge.label}
    if edge.kind in ("emits", "may_emit"):
        shown["type"] = "emit"
        listens = (one for one in flow.steps[edge.end].subscriptions if one.kind == edge.label)
        if (subscription := next(listens, None)) is not None and subscription.when is not None:
            shown["condition"] = show_condition(subscription.when)
    if edge.kind == "calls":
        shown["type"] = "call"
    wait = flow.steps[edge.start].handler.wait
    if edge.kind == "timeout" and wait is not None and wait.timeout is not None:
        shown["timeout"] = to_ms(wait.timeout)
    return shown


def _await_edges(flow: Flow) -> Iterator[dict[str, Any]]:
    """Return an edge from each step that declares a wait to itself."""
    for name, step in flow.steps.items():
        if (wait := step.handler.wait) is not None:
            edge: dict[str, Any] = {
                "from": name,
                "to": name,
                "label": f"{WAIT} {wait.event or wait.type}",
                "type": "await",
            }
            if wait.timeout is not None:
                edge["timeout"] = to_ms(wait.timeout)
            yield edge
