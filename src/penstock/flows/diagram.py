"""A flow as a graph: its steps, and the events that lead from one to the next. Pure; drawing it is for others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from ..core.durations import Duration, to_ms
from ..durable.declared_waits import Await
from ..handlers.registry import Flow

OUTSIDE = "(outside)"  # where the kinds a flow `accepts` come from; no step can be named so
Sort = Literal["emits", "may", "undo", "late"]
WAIT = "⏱"


@dataclass(frozen=True)
class Node:
    """A step, or the world outside the flow."""

    name: str
    queue: str = ""
    entry: bool = False
    mode: str = ""  # "each" and "all" are worth a mark
    undoes: bool = False
    wait: str = ""  # what it waits for, declared in its config

    @property
    def notes(self) -> list[str]:
        """What is said of it besides its name."""
        marks = {"each": "for each", "all": "join: all of them"}
        return [
            *(["entry"] if self.entry else []),
            *([f"queue {self.queue}"] if self.queue else []),
            *([marks[self.mode]] if self.mode in marks else []),
            *(["undoes"] if self.undoes else []),
            *([f"{WAIT} {self.wait}"] if self.wait else []),
        ]


@dataclass(frozen=True)
class Edge:
    """What leads from one step to another: an event it emits or `may` emit, its compensation, a wait in vain."""

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
        name: Node(
            name,
            step.handler.queue_name,
            name == entry,
            step.mode if step.kinds else "",
            name in undoers,
            _waits_for(step.handler.wait),
        )
        for name, step in flow.steps.items()
    }
    edges = [*_started(flow), *_emitted(flow), *_undone(flow), *_late(flow)]
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


def _started(flow: Flow) -> Iterable[Edge]:
    """The events, of any run or from outside, that start the flow."""
    kinds = dict.fromkeys(on.kind for on in flow.definition.start_on)
    return [Edge(OUTSIDE, flow.definition.entry.name, kind) for kind in kinds]


def _late(flow: Flow) -> Iterable[Edge]:
    for name, step in flow.steps.items():
        if step.on_timeout is not None and step.on_timeout in flow.steps:
            wait = step.handler.wait
            span = f" {_span(wait.timeout)}" if wait is not None and wait.timeout is not None else ""
            yield Edge(name, step.on_timeout, f"timeout{span}", "late")


def _waits_for(wait: Await | None) -> str:
    if wait is None:
        return ""
    if wait.type == "time":
        assert wait.delay is not None
        return "a time" if callable(wait.delay) else _span(wait.delay)
    what = wait.event if wait.type == "event" else f"{wait.trigger} {wait.name or 'trigger'}"
    return f"{what}, at most {_span(wait.timeout)}" if wait.timeout is not None else str(what)


def _span(duration: Duration) -> str:
    """A duration in the largest unit that fits it."""
    ms = to_ms(duration)
    units = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
    return next((f"{ms // size}{unit}" for unit, size in units if ms and ms % size == 0), f"{ms}ms")


def _undone(flow: Flow) -> Iterable[Edge]:
    for name, step in flow.steps.items():
        if step.compensation is not None and step.compensation in flow.steps:
            yield Edge(name, step.compensation, "undone by", "undo")


def as_mermaid(diagram: Diagram) -> str:
    """The graph in Mermaid's language; joins are hexagons, steps that run for each event have a double border, those
    that wait lean to one side and lead to themselves."""
    ids = {name: f"n{number}" for number, name in enumerate(diagram.nodes)}
    lines = ["flowchart LR"]
    for name, node in diagram.nodes.items():
        text = _quoted("<br/>".join([name, *(note for note in node.notes if not note.startswith(WAIT))]))
        left, right = _shape(node)
        lines.append(f"  {ids[name]}{left}{text}{right}")
        if node.wait:
            lines.append(f"  {ids[name]} -.->|{_quoted(f'{WAIT} {node.wait}')}| {ids[name]}")
    arrows = {"emits": "-->", "may": "-.->", "undo": "-.->", "late": "-.->"}
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
    if node.wait:
        return "[/", "/]"
    return ("([", "])") if node.entry else ("[", "]")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "#quot;") + '"'


_ASCII = str.maketrans({
    "┌": "+", "┐": "+", "└": "+", "┘": "+", "├": "+", "┬": "+", "─": "-", "│": "|", "▶": ">", "┄": ".", "╔": "+",
    "╗": "+", "╚": "+", "╝": "+", "═": "=", "║": "|", "╦": "+", "╤": "+", "·": "-", "↑": "^",
    "⏱": "waits for",
})  # fmt: skip


def as_text(diagram: Diagram, unicode: bool = True) -> str:
    """The graph drawn with box characters, or with ASCII; a step that two lead to is drawn once and then named."""
    drawn: set[str] = set()
    lines: list[str] = []
    reached = {edge.end for edge in diagram.edges}
    starts = [name for name, node in diagram.nodes.items() if node.entry or name not in reached]
    for name in [*starts, *diagram.nodes]:
        if name not in drawn:
            lines += [*_block(diagram, name, drawn)]
    text = "\n".join(line.rstrip() for line in lines)
    return text if unicode else text.translate(_ASCII)


def _block(diagram: Diagram, name: str, drawn: set[str]) -> list[str]:
    """A step's box, and below it, further to the right, the boxes it leads to."""
    drawn.add(name)
    edges = diagram.after(name)
    lines = _box(diagram.nodes[name], bool(edges))
    for number, edge in enumerate(edges):
        last = number == len(edges) - 1
        arrow = _arrow(edge)
        if edge.end in drawn:
            lines += ["  │", f"  {'└' if last else '├'}{arrow}{edge.end} (above)"]
            continue
        below = _block(diagram, edge.end, drawn)
        bar, indent = " " if last else "│", " " * len(arrow)
        lines.append(f"  │{indent}{below[0]}")
        lines.append(f"  {'└' if last else '├'}{arrow}{below[1]}")
        lines += [f"  {bar}{indent}{line}" for line in below[2:]]
    return lines


def _box(node: Node, leads_on: bool) -> list[str]:
    """A box with the name, what there is to say about it to its right. A join has a double border."""
    corners = tuple("╔═╗║╚╝╤" if node.mode == "all" else "┌─┐│└┘┬")
    top_left, flat, top_right, side, low_left, low_right, down = corners
    width = len(node.name) + 2
    bottom = f"{flat}{down}{flat * (width - 2)}" if leads_on else flat * width
    notes = " · ".join(node.notes)
    return [
        f"{top_left}{flat * width}{top_right}",
        f"{side} {node.name} {side}  {notes}",
        f"{low_left}{bottom}{low_right}",
    ]


def _arrow(edge: Edge) -> str:
    line = "─" if edge.sort == "emits" else "┄"
    return f"{line}{line} {edge.label} {line}▶ "
