"""A flow as a graph: its steps, and the events that lead from one to the next. Pure; drawing it is for others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from .registry import Flow

OUTSIDE = "(outside)"  # where the kinds a flow `accepts` come from; no step can be named so
Sort = Literal["emits", "may", "undo"]


@dataclass(frozen=True)
class Node:
    """A step, or the world outside the flow."""

    name: str
    queue: str = ""
    entry: bool = False
    mode: str = ""  # "each" and "all" are worth a mark
    undoes: bool = False

    @property
    def notes(self) -> list[str]:
        """What is said of it besides its name."""
        marks = {"each": "for each", "all": "join: all of them"}
        return [
            *(["entry"] if self.entry else []),
            *([f"queue {self.queue}"] if self.queue else []),
            *([marks[self.mode]] if self.mode in marks else []),
            *(["undoes"] if self.undoes else []),
        ]


@dataclass(frozen=True)
class Edge:
    """What leads from one step to another: an event it emits, one it `may` emit, or its compensation."""

    start: str
    end: str
    label: str
    sort: Sort = "emits"


@dataclass(frozen=True)
class Diagram:
    """Nodes by name in the order they were defined, and edges."""

    flow: str
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: tuple[Edge, ...] = ()

    def after(self, name: str) -> list[Edge]:
        """The edges that leave a node."""
        return [edge for edge in self.edges if edge.start == name]

    def layers(self) -> list[list[str]]:
        """The nodes in columns: each right of what leads to it, except where events go round in a circle."""
        level = dict.fromkeys(self.nodes, 0)
        forward = self._forward()
        for _ in self.nodes:  # a longest path has at most so many edges
            moved = False
            for edge in forward:
                if level[edge.end] < level[edge.start] + 1:
                    level[edge.end], moved = level[edge.start] + 1, True
            if not moved:
                break
        columns: list[list[str]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
        for name, column in level.items():
            columns[column].append(name)
        return columns

    def _forward(self) -> list[Edge]:
        """The edges without those that close a circle."""
        done: set[str] = set()
        forward: list[Edge] = []

        def walk(name: str, path: tuple[str, ...]) -> None:
            for edge in self.after(name):
                if edge.end in path or edge.end == name:
                    continue
                forward.append(edge)
                if edge.end not in done:
                    walk(edge.end, (*path, name))
            done.add(name)

        for name in self.nodes:
            if name not in done:
                walk(name, ())
        return forward


def diagram_of(flow: Flow) -> Diagram:
    """The graph of a flow."""
    undoers = {step.compensation for step in flow.steps.values()}
    entry = flow.definition.entry.name
    nodes = {
        name: Node(name, step.handler.home, name == entry, step.mode if step.kinds else "", name in undoers)
        for name, step in flow.steps.items()
    }
    edges = [*_emitted(flow), *_undone(flow)]
    if any(edge.start == OUTSIDE for edge in edges):
        nodes = {entry: nodes.pop(entry), OUTSIDE: Node(OUTSIDE), **nodes}
    return Diagram(flow.name, nodes, tuple(edges))


def _emitted(flow: Flow) -> Iterable[Edge]:
    known = {*flow.definition.accepts}.union(*(step.emits or () for step in flow.steps.values()))
    undoers = {step.compensation for step in flow.steps.values()}
    for kind in flow.definition.accepts:
        yield from (Edge(OUTSIDE, end, kind) for end in flow.table.listeners(kind))
    for name, step in flow.steps.items():
        for kind in step.emits or ():
            yield from (Edge(name, end, kind) for end in flow.table.listeners(kind))
        if step.emits is None and name not in undoers:
            # It declares nothing and so may emit what others listen to and nobody declares.
            yield from (
                Edge(name, end, kind, "may")
                for end, other in flow.steps.items()
                for kind in other.kinds
                if kind not in known and end != name
            )


def _undone(flow: Flow) -> Iterable[Edge]:
    for name, step in flow.steps.items():
        if step.compensation is not None and step.compensation in flow.steps:
            yield Edge(name, step.compensation, "undone by", "undo")


def as_mermaid(diagram: Diagram) -> str:
    """The graph in Mermaid's language; joins are hexagons, steps that run for each event have a double border."""
    ids = {name: f"n{number}" for number, name in enumerate(diagram.nodes)}
    lines = ["flowchart LR"]
    for name, node in diagram.nodes.items():
        text = _quoted("<br/>".join([name, *node.notes]))
        left, right = _shape(node)
        lines.append(f"  {ids[name]}{left}{text}{right}")
    arrows = {"emits": "-->", "may": "-.->", "undo": "-.->"}
    for edge in diagram.edges:
        lines.append(f"  {ids[edge.start]} {arrows[edge.sort]}|{_quoted(edge.label)}| {ids[edge.end]}")
    return "\n".join(lines)


def _shape(node: Node) -> tuple[str, str]:
    if node.name == OUTSIDE:
        return "((", "))"
    if node.mode == "all":
        return "{{", "}}"
    if node.mode == "each":
        return "[[", "]]"
    return ("([", "])") if node.entry else ("[", "]")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "#quot;") + '"'
