"""The diagram of a state machine: as Mermaid, as SVG and as data, with the current state of an entity marked."""

from __future__ import annotations

from typing import Any

from ..flows.diagram import Diagram, DiagramNode, Edge
from ..flows.diagram_svg import render_svg
from ..handlers.entity_machine import Machine, Transition

CURRENT = "● now"


def render_entity_mermaid(machine: Machine, current: str | None = None) -> str:
    """Render a Mermaid state diagram."""
    ids = {state: f"s{n}" for n, state in enumerate(machine.states)}
    lines = ["stateDiagram-v2", *(f'  state "{state}" as {ids[state]}' for state in machine.states)]
    lines.append(f"  [*] --> {ids[machine.initial]}")
    lines += [
        f"  {ids[start]} --> {ids[one.to]}{f' : {label}' if label else ''}"
        for one in machine.transitions
        for label in (_label(one),)
        for start in one.froms
    ]
    lines += [f"  {ids[state]} --> [*]" for state in machine.states if state in machine.finals]
    if current in ids:
        lines += ["  classDef now stroke-width:3px,font-weight:bold", f"  class {ids[current]} now"]
    return "\n".join(lines) + "\n"


def render_entity_svg(name: str, machine: Machine, current: str | None = None) -> str:
    """Render a self-contained SVG."""
    return render_svg(build_entity_diagram(name, machine, current))


def build_entity_diagram(name: str, machine: Machine, current: str | None = None) -> Diagram:
    """Build the graph of a state machine."""
    nodes = {state: DiagramNode(state, type=", ".join(_notes(machine, state, current))) for state in machine.states}
    edges = tuple(Edge(start, one.to, _label(one)) for one in machine.transitions for start in one.froms)
    return Diagram(name, nodes, edges)


def describe_entity_diagram(machine: Machine, current: str | None = None) -> dict[str, Any]:
    """Return `{nodes, edges}` of a state machine, JSON-safe."""
    return {
        "nodes": [
            {"id": state, "type": _kind(machine, state), **({"isCurrent": True} if state == current else {})}
            for state in machine.states
        ],
        "edges": [
            {"from": start, "to": one.to, "label": _label(one), "isConditional": bool(one.conditions)}
            for one in machine.transitions
            for start in one.froms
        ],
    }


def _label(one: Transition) -> str:
    label = " | ".join(one.events) or "automatic"
    return f"{label} [{', '.join(_name(condition) for condition in one.conditions)}]" if one.conditions else label


def _name(condition: Any) -> str:
    name = getattr(condition, "__name__", "condition")
    return "condition" if name == "<lambda>" else str(name)


def _kind(machine: Machine, state: str) -> str:
    if state in machine.finals:
        return "final"
    if state == machine.failed:
        return "failed"
    return "idle" if state in machine.idles else "automatic"


def _notes(machine: Machine, state: str, current: str | None) -> list[str]:
    notes = [CURRENT] if state == current else []
    notes += ["initial"] if state == machine.initial else []
    kind = _kind(machine, state)
    return [*notes, *([kind] if kind != "idle" else [])]
