"""A flow's graph in a terminal: boxes, and under each what it leads to."""

from __future__ import annotations

from .diagram import Diagram, Edge, Node

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
