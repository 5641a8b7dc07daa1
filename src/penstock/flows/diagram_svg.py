"""A flow's graph as a self-contained SVG: no script, no external font, with a light and a dark theme."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from .diagram import Diagram, DiagramNode, Edge

LETTER_WIDTH_PX, LINE_HEIGHT_PX = 7.4, 16.0  # approximate
GAP_Y_PX, MARGIN_PX, PADDING_PX = 34.0, 24.0, 14.0
STYLE = """
  svg { font: 13px ui-sans-serif, system-ui, sans-serif; --ink: #1f2733; --dim: #667085; --box: #fff; --page: #f7f8fa;
        --line: #98a2b3; --entry: #2563eb; --join: #b45309; --compensation: #b91c1c; }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #e6e9ef; --dim: #98a2b3; --box: #1d2430; --page: #12161d; --line: #667085; --entry: #7aa2ff;
          --join: #f0b24a; --compensation: #f48a8a; } }
  .page { fill: var(--page); } .box { fill: var(--box); stroke: var(--line); stroke-width: 1.5; }
  .wait { stroke-dasharray: 6 3; }
  .entry { stroke: var(--entry); stroke-width: 2; } .all { stroke: var(--join); stroke-width: 2; }
  .name { fill: var(--ink); font-weight: 600; } .note { fill: var(--dim); font-size: 11px; }
  .edge { fill: none; stroke: var(--line); stroke-width: 1.5; } .may_emit { stroke-dasharray: 5 4; }
  .timeout { stroke: var(--join); stroke-dasharray: 5 4; }
  .compensation { stroke: var(--compensation); stroke-dasharray: 2 4; } .head { fill: var(--line); }
  .label { fill: var(--dim); font-size: 11px; text-anchor: middle; paint-order: stroke; stroke: var(--page);
           stroke-width: 4px; }
"""


@dataclass(frozen=True)
class _Box:
    node: DiagramNode
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def render_svg(diagram: Diagram) -> str:
    """Render the graph from left to right."""
    boxes = _layout(diagram)
    width = max((box.x + box.width for box in boxes.values()), default=0) + MARGIN_PX
    # Edges that lead back or would cross other boxes run below all boxes.
    height = max((box.y + box.height for box in boxes.values()), default=0) + MARGIN_PX
    height += 24 * _count_detours(diagram, boxes)
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(f'Flow {diagram.flow}')}</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
        '<rect class="page" width="100%" height="100%" rx="8"/>',
        *_render_edges(diagram, boxes, height),
        *(_render_box(box) for box in boxes.values()),
        "</svg>",
    ])  # fmt: skip


def _layout(diagram: Diagram) -> dict[str, _Box]:
    """Place the boxes in columns as wide as their widest box, with room for the labels of edges between them."""
    columns = _sort_columns(diagram)
    tallest = max((_column_height(diagram, column) for column in columns), default=0)
    boxes: dict[str, _Box] = {}
    x = MARGIN_PX
    for column in columns:
        width = max(_width(diagram.nodes[name]) for name in column)
        y = MARGIN_PX + (tallest - _column_height(diagram, column)) / 2
        for name in column:
            height = _height(diagram.nodes[name])
            boxes[name] = _Box(diagram.nodes[name], x, y, width, height)
            y += height + GAP_Y_PX
        labels = [len(edge.label) for name in column for edge in diagram.edges_from(name)]
        x += width + max(60.0, max(labels, default=0) * 6.4 + 40)
    return boxes


def _sort_columns(diagram: Diagram) -> list[list[str]]:
    """Sort each column by the mean position of the nodes that lead to it, so that fewer edges cross."""
    positions: dict[str, float] = {}
    columns = diagram.layers()
    for column in columns:
        means: dict[str, float] = {}
        for index, name in enumerate(column):
            before = [positions[edge.start] for edge in diagram.edges if edge.end == name and edge.start in positions]
            means[name] = sum(before) / len(before) if before else float(index)
        column.sort(key=means.__getitem__)
        positions.update({name: index - (len(column) - 1) / 2 for index, name in enumerate(column)})
    return columns


def _width(node: DiagramNode) -> float:
    notes = max((len(note) for note in node.notes), default=0) * 6.2
    return max(len(node.name) * LETTER_WIDTH_PX * 1.1, notes) + 2 * PADDING_PX


def _height(node: DiagramNode) -> float:
    return 2 * PADDING_PX + LINE_HEIGHT_PX * (1 + len(node.notes)) - 6


def _column_height(diagram: Diagram, column: list[str]) -> float:
    return sum(_height(diagram.nodes[name]) + GAP_Y_PX for name in column) - GAP_Y_PX


def _needs_detour(start: _Box, end: _Box, boxes: dict[str, _Box]) -> bool:
    """Return whether a direct edge would lead back, or through a column of other boxes."""
    between = any(start.x + start.width < box.x and box.x + box.width < end.x for box in boxes.values())
    return end.x <= start.x or (between and abs(start.middle - end.middle) < 1)


def _count_detours(diagram: Diagram, boxes: dict[str, _Box]) -> int:
    routes = {(edge.start, edge.end) for edge in diagram.edges}
    return sum(_needs_detour(boxes[start], boxes[end], boxes) for start, end in routes)


def _render_edges(diagram: Diagram, boxes: dict[str, _Box], height: float) -> list[str]:
    """Render one line for all events of a kind of edge between two steps; they share its label."""
    routes: dict[tuple[str, str, str], list[Edge]] = {}
    for edge in diagram.edges:
        routes.setdefault((edge.start, edge.end, edge.kind), []).append(edge)
    lines, bottom = [], height - 10
    for (start_name, end_name, kind), edges in routes.items():
        label = ", ".join(edge.label for edge in edges)
        start, end = boxes[start_name], boxes[end_name]
        if _needs_detour(start, end, boxes):
            lines.append(_render_detour(start, end, kind, label, bottom))
            bottom -= 22
        else:
            lines.append(_render_direct(start, end, kind, label))
    return lines


def _render_direct(start: _Box, end: _Box, kind: str, label: str) -> str:
    x1, y1, x2, y2 = start.x + start.width, start.middle, end.x - 2, end.middle
    bend = (x2 - x1) / 2
    path = f"M{x1:.1f} {y1:.1f} C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return _render_edge(path, kind, label, (x1 + x2) / 2, (y1 + y2) / 2 - 5)


def _render_detour(start: _Box, end: _Box, kind: str, label: str, bottom: float) -> str:
    x1, y1 = start.x + start.width / 2, start.y + start.height
    x2, y2 = end.x + end.width / 2, end.y + end.height + 2
    path = f"M{x1:.1f} {y1:.1f} C{x1:.1f} {bottom + 12:.1f} {x2:.1f} {bottom + 12:.1f} {x2:.1f} {y2:.1f}"
    return _render_edge(path, kind, label, (x1 + x2) / 2, bottom - 2)


def _render_edge(path: str, kind: str, label: str, x: float, y: float) -> str:
    text = f'<text class="label" x="{x:.1f}" y="{y:.1f}">{escape(label)}</text>'
    return f'<path class="edge {kind}" d="{path}" marker-end="url(#head)"/>{text}'


def _render_box(box: _Box) -> str:
    node = box.node
    classes = ("entry" if node.is_entry else "", node.mode, "wait" if node.wait else "")
    css = " ".join(word for word in classes if word)
    shape = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="8"'
    parts = []
    if node.mode == "each":  # a stack: it runs many times
        behind = f'x="{box.x + 4:.1f}" y="{box.y + 4:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="8"'
        parts.append(f'<rect class="box {css}" {behind}/>')
    parts.append(f'<rect class="box {css}" {shape}/>')
    x, y = box.x + PADDING_PX, box.y + PADDING_PX + 9
    parts.append(f'<text class="name" x="{x:.1f}" y="{y:.1f}">{escape(node.name)}</text>')
    for number, note in enumerate(node.notes, 1):
        parts.append(f'<text class="note" x="{x:.1f}" y="{y + number * LINE_HEIGHT_PX:.1f}">{escape(note)}</text>')
    return "".join(parts)
