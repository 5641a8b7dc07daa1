"""A flow as a graph of steps and the events between them, rendered as Mermaid or as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from ..core.durations import Duration, to_ms
from ..durable.declared_waits import Await
from ..handlers.called_flows import find_called_flows
from ..handlers.registry import Flow
from ..handlers.trigger_table import TriggerTable

OUTSIDE = "(outside)"  # the source of the kinds a flow `accepts`; not a valid step name
EdgeKind = Literal["emits", "may_emit", "compensation", "timeout", "calls"]
WAIT = "⏱"


@dataclass(frozen=True)
class DiagramNode:
    """A step, another flow that a step calls, or what is outside the flow."""

    name: str
    queue: str = ""
    is_entry: bool = False
    mode: str = ""  # "each" and "all" are marked
    is_compensation: bool = False
    wait: str = ""  # the wait its config declares
    is_flow: bool = False  # another flow
    type: str = ""  # of a node of a dag

    @property
    def notes(self) -> list[str]:
        """The notes beside its name."""
        marks = {"each": "for each event", "all": "join"}
        return [
            *(["entry"] if self.is_entry else []),
            *([self.type] if self.type else []),
            *([f"queue {self.queue}"] if self.queue else []),
            *([marks[self.mode]] if self.mode in marks else []),
            *(["compensation"] if self.is_compensation else []),
            *([f"{WAIT} {self.wait}"] if self.wait else []),
        ]


@dataclass(frozen=True)
class Edge:
    """A link from one step to another: an event it emits or may emit, its compensation, or the timeout of its wait; or
    from a step to a flow that it calls or starts."""

    start: str
    end: str
    label: str
    kind: EdgeKind = "emits"


@dataclass(frozen=True)
class Diagram:
    """Nodes by name, in the order of their definition, and edges."""

    flow: str
    nodes: dict[str, DiagramNode] = field(default_factory=dict)
    edges: tuple[Edge, ...] = ()

    def edges_from(self, name: str) -> list[Edge]:
        """Return the edges that leave a node."""
        return [edge for edge in self.edges if edge.start == name]

    def layers(self) -> list[list[str]]:
        """Return the nodes in columns, each to the right of the nodes that lead to it, except in cycles."""
        level = dict.fromkeys(self.nodes, 0)
        forward = self._forward_edges()
        for _ in self.nodes:  # no path is longer than the number of nodes
            has_moved = False
            for edge in forward:
                if level[edge.end] < level[edge.start] + 1:
                    level[edge.end], has_moved = level[edge.start] + 1, True
            if not has_moved:
                break
        columns: list[list[str]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
        for name, column in level.items():
            columns[column].append(name)
        return columns

    def _forward_edges(self) -> list[Edge]:
        """Return the edges without those that close a cycle."""
        done: set[str] = set()
        forward: list[Edge] = []

        def walk(name: str, path: tuple[str, ...]) -> None:
            for edge in self.edges_from(name):
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


def build_diagram(flow: Flow) -> Diagram:
    """Build the graph of a flow."""
    compensations = {step.compensation for step in flow.steps.values()}
    entry = flow.definition.entry.name
    nodes = {
        name: DiagramNode(
            name,
            step.handler.queue_name,
            name == entry,
            step.mode if step.kinds else "",
            name in compensations,
            _describe_wait(step.handler.wait),
        )
        for name, step in flow.steps.items()
    }
    edges = [*_start_edges(flow), *_emit_edges(flow), *_compensation_edges(flow), *_timeout_edges(flow)]
    edges += (calls := list(_call_edges(flow)))
    nodes |= {edge.end: DiagramNode(edge.end, is_flow=True) for edge in calls}
    if any(edge.start == OUTSIDE for edge in edges):
        nodes = {entry: nodes.pop(entry), OUTSIDE: DiagramNode(OUTSIDE), **nodes}
    return Diagram(flow.name, nodes, tuple(edges))


def build_pinned_diagram(table: TriggerTable, loaded: Flow | None) -> Diagram:
    """Build the graph of a trigger table that a run was started with and the loaded code no longer has.

    A table has what starts each step, not what emits it: the edges are what the loaded steps of the same names declare.
    """
    compensations = {step.compensation for step in table.steps.values()}
    nodes = {
        name: DiagramNode(name, step.queue, name == table.entry, step.mode if step.kinds else "", name in compensations)
        for name, step in sorted(table.steps.items(), key=lambda one: one[0] != table.entry)  # the entry first
    }
    emits = {name: step.emits or () for name, step in loaded.steps.items()} if loaded is not None else {}
    edges = [
        *(
            Edge(name, end, kind, "may_emit")
            for name in nodes
            for kind in emits.get(name, ())
            for end in table.listeners(kind)
        ),
        *(
            Edge(name, step.compensation, "compensated by", "compensation")
            for name, step in table.steps.items()
            if step.compensation is not None and step.compensation in nodes
        ),
    ]
    return Diagram(table.flow, nodes, tuple(edges))


def _emit_edges(flow: Flow) -> Iterable[Edge]:
    declared = {*flow.definition.accepts}.union(*(step.emits or () for step in flow.steps.values()))
    compensations = {step.compensation for step in flow.steps.values()}
    for kind in flow.definition.accepts:
        yield from (Edge(OUTSIDE, end, kind) for end in flow.table.listeners(kind))
    for name, step in flow.steps.items():
        for kind in step.emits or ():
            yield from (Edge(name, end, kind) for end in flow.table.listeners(kind))
        if step.emits is None and name not in compensations:
            # A step without `emits` may emit every kind that others listen to and no step declares.
            yield from (
                Edge(name, end, kind, "may_emit")
                for end, other in flow.steps.items()
                for kind in other.kinds
                if kind not in declared and end != name
            )


def _call_edges(flow: Flow) -> Iterable[Edge]:
    """Return an edge for each flow that a step calls or starts, as far as its source shows it."""
    for name, step in flow.steps.items():
        yield from (Edge(name, called_node(one.flow), one.label, "calls") for one in find_called_flows(step.handler.fn))


def called_node(flow: str) -> str:
    """Return the name of the node of a called flow. It has a space, so that no step has it."""
    return f"flow {flow}"


def _start_edges(flow: Flow) -> Iterable[Edge]:
    """Return an edge for each kind of event that starts the flow."""
    kinds = dict.fromkeys(on.kind for on in flow.definition.start_on)
    return [Edge(OUTSIDE, flow.definition.entry.name, kind) for kind in kinds]


def _timeout_edges(flow: Flow) -> Iterable[Edge]:
    for name, step in flow.steps.items():
        if step.on_timeout is not None and step.on_timeout in flow.steps:
            wait = step.handler.wait
            span = f" {_format_duration(wait.timeout)}" if wait is not None and wait.timeout is not None else ""
            yield Edge(name, step.on_timeout, f"timeout{span}", "timeout")


def _describe_wait(wait: Await | None) -> str:
    if wait is None:
        return ""
    if wait.type == "time":
        assert wait.delay is not None
        return "a time" if callable(wait.delay) else _format_duration(wait.delay)
    what = wait.event if wait.type == "event" else f"trigger {wait.name or ''}".rstrip()
    return f"{what}, at most {_format_duration(wait.timeout)}" if wait.timeout is not None else str(what)


def _format_duration(duration: Duration) -> str:
    """Format a duration in the largest unit that divides it."""
    ms = to_ms(duration)
    units = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
    return next((f"{ms // size}{unit}" for unit, size in units if ms and ms % size == 0), f"{ms}ms")


def _compensation_edges(flow: Flow) -> Iterable[Edge]:
    for name, step in flow.steps.items():
        if step.compensation is not None and step.compensation in flow.steps:
            yield Edge(name, step.compensation, "compensated by", "compensation")


def render_mermaid(diagram: Diagram) -> str:
    """Render the graph as Mermaid.

    Joins are hexagons, steps with mode "each" have a double border, steps that wait are slanted and link to themselves,
    other flows are trapezoids.
    """
    ids = {name: f"n{number}" for number, name in enumerate(diagram.nodes)}
    lines = ["flowchart LR"]
    for name, node in diagram.nodes.items():
        text = _quote("<br/>".join([name, *(note for note in node.notes if not note.startswith(WAIT))]))
        left, right = _shape(node)
        lines.append(f"  {ids[name]}{left}{text}{right}")
        if node.wait:
            lines.append(f"  {ids[name]} -.->|{_quote(f'{WAIT} {node.wait}')}| {ids[name]}")
    for edge in diagram.edges:
        arrow = "-->" if edge.kind == "emits" else "-.->"
        label = f"|{_quote(edge.label)}|" if edge.label else ""
        lines.append(f"  {ids[edge.start]} {arrow}{label} {ids[edge.end]}")
    return "\n".join(lines)


def _shape(node: DiagramNode) -> tuple[str, str]:
    if node.name == OUTSIDE:
        return "((", "))"
    if node.is_flow:
        return "[/", "\\]"
    if node.mode == "all":
        return "{{", "}}"
    if node.mode == "each":
        return "[[", "]]"
    if node.wait:
        return "[/", "/]"
    return ("([", "])") if node.is_entry else ("[", "]")


def _quote(text: str) -> str:
    return '"' + text.replace('"', "#quot;") + '"'


_ASCII = str.maketrans({
    "┌": "+", "┐": "+", "└": "+", "┘": "+", "├": "+", "┬": "+", "─": "-", "│": "|", "▶": ">", "┄": ".", "╔": "+",
    "╗": "+", "╚": "+", "╝": "+", "═": "=", "║": "|", "╦": "+", "╤": "+", "·": "-", "↑": "^",
    "⏱": "waits for",
})  # fmt: skip


def render_text(diagram: Diagram, unicode: bool = True) -> str:
    """Render the graph with box characters, or with ASCII. Each step is drawn once and then only named."""
    visited: set[str] = set()
    lines: list[str] = []
    targets = {edge.end for edge in diagram.edges}
    starts = [name for name, node in diagram.nodes.items() if node.is_entry or name not in targets]
    for name in [*starts, *diagram.nodes]:
        if name not in visited:
            lines += [*_render_subtree(diagram, name, visited)]
    text = "\n".join(line.rstrip() for line in lines)
    return text if unicode else text.translate(_ASCII)


def _render_subtree(diagram: Diagram, name: str, visited: set[str]) -> list[str]:
    """Render a step's box and, below and to the right, the boxes it leads to."""
    visited.add(name)
    edges = diagram.edges_from(name)
    lines = _render_box(diagram.nodes[name], bool(edges))
    for number, edge in enumerate(edges):
        is_last = number == len(edges) - 1
        arrow = _render_arrow(edge)
        if edge.end in visited:
            lines += ["  │", f"  {'└' if is_last else '├'}{arrow}{edge.end} (above)"]
            continue
        below = _render_subtree(diagram, edge.end, visited)
        bar, indent = " " if is_last else "│", " " * len(arrow)
        lines.append(f"  │{indent}{below[0]}")
        lines.append(f"  {'└' if is_last else '├'}{arrow}{below[1]}")
        lines += [f"  {bar}{indent}{line}" for line in below[2:]]
    return lines


def _render_box(node: DiagramNode, has_edges: bool) -> list[str]:
    """Render a box with the step's name, and its notes to the right. A join has a double border."""
    corners = tuple("╔═╗║╚╝╤" if node.mode == "all" else "┌─┐│└┘┬")
    top_left, flat, top_right, side, low_left, low_right, down = corners
    width = len(node.name) + 2
    bottom = f"{flat}{down}{flat * (width - 2)}" if has_edges else flat * width
    notes = " · ".join(node.notes)
    return [
        f"{top_left}{flat * width}{top_right}",
        f"{side} {node.name} {side}  {notes}",
        f"{low_left}{bottom}{low_right}",
    ]


def _render_arrow(edge: Edge) -> str:
    line = "─" if edge.kind == "emits" else "┄"
    return f"{line}{line} {edge.label} {line}▶ "
