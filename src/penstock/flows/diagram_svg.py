"""A flow's graph as an SVG of its own: no script, no font from elsewhere, readable in the light and in the dark."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from .diagram import Diagram, Edge, Node

LETTER, LINE = 7.4, 16.0  # width of a letter and height of a line, about
GAP_Y, MARGIN, PAD = 34.0, 24.0, 14.0
STYLE = """
  svg { font: 13px ui-sans-serif, system-ui, sans-serif; --ink: #1f2733; --dim: #667085; --box: #fff; --page: #f7f8fa;
        --line: #98a2b3; --entry: #2563eb; --join: #b45309; --undo: #b91c1c; }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #e6e9ef; --dim: #98a2b3; --box: #1d2430; --page: #12161d; --line: #667085; --entry: #7aa2ff;
          --join: #f0b24a; --undo: #f48a8a; } }
  .page { fill: var(--page); } .box { fill: var(--box); stroke: var(--line); stroke-width: 1.5; }
  .wait { stroke-dasharray: 6 3; }
  .entry { stroke: var(--entry); stroke-width: 2; } .all { stroke: var(--join); stroke-width: 2; }
  .name { fill: var(--ink); font-weight: 600; } .note { fill: var(--dim); font-size: 11px; }
  .edge { fill: none; stroke: var(--line); stroke-width: 1.5; } .may { stroke-dasharray: 5 4; }
  .late { stroke: var(--join); stroke-dasharray: 5 4; }
  .undo { stroke: var(--undo); stroke-dasharray: 2 4; } .head { fill: var(--line); }
  .label { fill: var(--dim); font-size: 11px; text-anchor: middle; paint-order: stroke; stroke: var(--page);
           stroke-width: 4px; }
"""


@dataclass(frozen=True)
class _Box:
    node: Node
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def as_svg(diagram: Diagram) -> str:
    """The graph, drawn from left to right."""
    boxes = _placed(diagram)
    width = max((box.x + box.width for box in boxes.values()), default=0) + MARGIN
    # Edges that go back and those that pass boxes by run below.
    height = max((box.y + box.height for box in boxes.values()), default=0) + MARGIN + 12 * _detours(diagram, boxes)
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(f'Flow {diagram.flow}')}</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
        '<rect class="page" width="100%" height="100%" rx="8"/>',
        *_edges(diagram, boxes, height),
        *(_drawn(box) for box in boxes.values()),
        "</svg>",
    ])  # fmt: skip


def _placed(diagram: Diagram) -> dict[str, _Box]:
    """Columns as wide as their widest box, with room for the labels of the edges between them."""
    columns = _sorted(diagram)
    tallest = max((_column_height(diagram, column) for column in columns), default=0)
    boxes: dict[str, _Box] = {}
    x = MARGIN
    for column in columns:
        width = max(_width(diagram.nodes[name]) for name in column)
        y = MARGIN + (tallest - _column_height(diagram, column)) / 2
        for name in column:
            height = _height(diagram.nodes[name])
            boxes[name] = _Box(diagram.nodes[name], x, y, width, height)
            y += height + GAP_Y
        labels = [len(edge.label) for name in column for edge in diagram.after(name)]
        x += width + max(60.0, max(labels, default=0) * 6.4 + 40)
    return boxes


def _sorted(diagram: Diagram) -> list[list[str]]:
    """Each column in the order of what leads to it, so that edges cross less."""
    place: dict[str, float] = {}
    columns = diagram.layers()
    for column in columns:

        def wish(name: str, column: list[str] = column) -> float:
            before = [place[edge.start] for edge in diagram.edges if edge.end == name and edge.start in place]
            return sum(before) / len(before) if before else float(column.index(name))

        wishes = {name: wish(name) for name in column}
        column.sort(key=wishes.__getitem__)
        place.update({name: index - (len(column) - 1) / 2 for index, name in enumerate(column)})
    return columns


def _width(node: Node) -> float:
    return max(len(node.name) * LETTER * 1.1, max((len(n) for n in node.notes), default=0) * 6.2) + 2 * PAD


def _height(node: Node) -> float:
    return 2 * PAD + LINE * (1 + len(node.notes)) - 6


def _column_height(diagram: Diagram, column: list[str]) -> float:
    return sum(_height(diagram.nodes[name]) + GAP_Y for name in column) - GAP_Y


def _goes_round(start: _Box, end: _Box, boxes: dict[str, _Box]) -> bool:
    """Whether the straight way leads back, or through a column of other boxes."""
    between = any(start.x + start.width < box.x and box.x + box.width < end.x for box in boxes.values())
    return end.x <= start.x or (between and abs(start.middle - end.middle) < 1)


def _detours(diagram: Diagram, boxes: dict[str, _Box]) -> int:
    ways = {(edge.start, edge.end) for edge in diagram.edges}
    return sum(_goes_round(boxes[start], boxes[end], boxes) for start, end in ways) * 2


def _edges(diagram: Diagram, boxes: dict[str, _Box], height: float) -> list[str]:
    """One line between two steps, however many events lead along it: they share its label."""
    ways: dict[tuple[str, str, str], list[Edge]] = {}
    for edge in diagram.edges:
        ways.setdefault((edge.start, edge.end, edge.sort), []).append(edge)
    lines, low = [], height - 10
    for (start, end, sort), edges in ways.items():
        label = ", ".join(edge.label for edge in edges)
        one, other = boxes[start], boxes[end]
        if _goes_round(one, other, boxes):
            lines.append(_round(one, other, sort, label, low))
            low -= 22
        else:
            lines.append(_straight(one, other, sort, label))
    return lines


def _straight(one: _Box, other: _Box, sort: str, label: str) -> str:
    x1, y1, x2, y2 = one.x + one.width, one.middle, other.x - 2, other.middle
    bend = (x2 - x1) / 2
    path = f"M{x1:.1f} {y1:.1f} C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return _edge(path, sort, label, (x1 + x2) / 2, (y1 + y2) / 2 - 5)


def _round(one: _Box, other: _Box, sort: str, label: str, low: float) -> str:
    x1, y1 = one.x + one.width / 2, one.y + one.height
    x2, y2 = other.x + other.width / 2, other.y + other.height + 2
    path = f"M{x1:.1f} {y1:.1f} C{x1:.1f} {low + 12:.1f} {x2:.1f} {low + 12:.1f} {x2:.1f} {y2:.1f}"
    return _edge(path, sort, label, (x1 + x2) / 2, low - 2)


def _edge(path: str, sort: str, label: str, x: float, y: float) -> str:
    text = f'<text class="label" x="{x:.1f}" y="{y:.1f}">{escape(label)}</text>'
    return f'<path class="edge {sort}" d="{path}" marker-end="url(#head)"/>{text}'


def _drawn(box: _Box) -> str:
    node = box.node
    sort = " ".join(word for word in ("entry" if node.entry else "", node.mode, "wait" if node.wait else "") if word)
    shape = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="8"'
    parts = []
    if node.mode == "each":  # a stack: it runs many times
        behind = f'x="{box.x + 4:.1f}" y="{box.y + 4:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="8"'
        parts.append(f'<rect class="box {sort}" {behind}/>')
    parts.append(f'<rect class="box {sort}" {shape}/>')
    x, y = box.x + PAD, box.y + PAD + 9
    parts.append(f'<text class="name" x="{x:.1f}" y="{y:.1f}">{escape(node.name)}</text>')
    for number, note in enumerate(node.notes, 1):
        parts.append(f'<text class="note" x="{x:.1f}" y="{y + number * LINE:.1f}">{escape(note)}</text>')
    return "".join(parts)
