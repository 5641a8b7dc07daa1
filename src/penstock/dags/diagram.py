"""The diagram of a dag: the same drawings and the same data as the diagram of a flow."""

from __future__ import annotations

from typing import Any

from ..flows.diagram import Diagram, DiagramNode, Edge
from .definition import Dag


class DagDiagram(Diagram):
    """The graph of a dag. It has no cycles, so every edge leads to the right."""

    def _forward_edges(self) -> list[Edge]:
        return list(self.edges)


def build_dag_diagram(dag: Dag) -> Diagram:
    """Build the graph of a dag: its nodes with their types, and an edge for each input."""
    nodes = {one.id: DiagramNode(one.id, is_entry=not one.inputs, type=one.type) for one in dag.nodes}
    edges = tuple(Edge(parent, one.id, "") for one in dag.nodes for parent in one.inputs)
    return DagDiagram(dag.id, nodes, edges)


def describe_dag_diagram(dag: Dag) -> dict[str, Any]:
    """Return `{nodes, edges}` of a dag, JSON-safe."""
    return {
        "nodes": [{"id": one.id, "type": one.type} for one in dag.nodes],
        "edges": [{"from": parent, "to": one.id, "type": "input"} for one in dag.nodes for parent in one.inputs],
    }
