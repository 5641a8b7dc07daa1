"""Drawing a run: in colour for a terminal, as plain lines for a pipe."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ..core.clock import Clock
from ..flows.reducer import FlowView
from .rows import MARKS, Row, elapsed, one_line, rows_of

COLOURS = {
    "running": "cyan", "completed": "green", "failed": "red", "retrying": "yellow", "pending": "dim", "waiting": "blue",
    "timeout": "red", "cancelled": "magenta", "compensating": "yellow", "compensated": "yellow",
    "paused": "magenta",
}  # fmt: skip
ASCII = {"✓": "+", "✗": "x", "●": "*", "↻": "~", "·": ".", "…": "_", "–": "-"}
BAR = 16  # characters
RESULT = 200  # characters of a result shown in a picture


class Picture:
    """A run as it is at the moment it is drawn; give it to rich."""

    def __init__(self, view: FlowView, clock: Clock) -> None:
        self.view = view
        self._clock = clock

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = self._clock.now_ms()
        rows = rows_of(self.view, now)
        # What does not fit the screen would scroll away while it is redrawn.
        room = max((options.height or console.height) - 4, 5)
        hidden = len(rows) - room if options.is_terminal and len(rows) > room else 0
        yield self._head(now)
        if hidden:
            yield Text(f"  {hidden} more above", style="dim")
        for line in _lines(rows[hidden:], options.encoding.startswith("utf")):
            line.truncate(options.max_width, overflow="ellipsis")
            yield line
        yield from self._end()

    def _head(self, now: int) -> Text:
        view = self.view
        colour = COLOURS.get(view.status, "")
        spent = (elapsed(view, now), "dim")
        return Text.assemble(
            (view.name or "run", "bold"), " ", (view.id, "dim"), "  ", (view.status, colour), "  ", spent
        )

    def _end(self) -> list[Text]:
        return [Text.assemble((f"{what} ", style), text) for what, style, text in end_of(self.view, RESULT)]


def _lines(rows: list[Row], unicode: bool) -> list[Text]:
    """A line for each row, its columns under each other; only the last one is cut when the screen is narrow."""
    name, note, took = (
        max((cell_len(getattr(row, part)) for row in rows), default=0) for part in ("name", "note", "took")
    )
    lines = []
    for row in rows:
        mark = MARKS.get(row.status, "?")
        line = Text(f"  {mark if unicode else ASCII.get(mark, mark)} ", COLOURS.get(row.status, ""), no_wrap=True)
        line.append(set_cell_size(row.name, name), "default not dim")
        line.append("  " + set_cell_size(row.note, note) if note else "", "not dim yellow")
        line.append(f"  {row.took:>{took}}", "dim default")
        if row.progress is not None:
            done = round(BAR * row.progress / 100)
            line.append("  " + ("━" if unicode else "=") * done, "not dim cyan")
            line.append(("━" if unicode else "-") * (BAR - done), "bright_black")
        colour = "not dim red" if row.status in ("failed", "retrying", "timeout") else "dim default"
        line.append(f"  {row.detail}" if row.detail else "", colour)
        line.rstrip()
        lines.append(line)
    return lines


def plain(view: FlowView, now_ms: int, unicode: bool = True) -> str:
    """The same as lines of text, each as long as it needs to be."""
    rows = rows_of(view, now_ms)
    lines = [" ".join(part for part in (view.name, view.id, view.status, elapsed(view, now_ms)) if part)]
    name = max((len(row.name) for row in rows), default=0)
    took = max((len(row.took) for row in rows), default=0)
    for row in rows:
        mark = MARKS.get(row.status, "?")
        mark = mark if unicode else ASCII.get(mark, mark)
        percent = f"{row.progress:.0f} %" if row.progress is not None else ""
        rest = "  ".join(part for part in (row.note, percent, row.detail) if part)
        lines.append(f"  {mark} {row.name:<{name}}  {row.took:>{took}}  {rest}".rstrip())
    lines += [f"{what} {text}" for what, _, text in end_of(view, 10_000)]
    return "\n".join(lines)


def end_of(view: FlowView, most: int) -> Iterator[tuple[str, str, str]]:
    """What the last lines of a picture say: what it is, its style, and the text, of so many characters at most."""
    for step, kinds in (view.unmet or {}).items():
        yield "unmet", "yellow", f"{step} never started: {', '.join(kinds)} did not come"
    if view.status == "completed":
        yield "result", "dim", one_line(view.result, most)
    elif view.error is not None:
        yield "error", "red", one_line(view.error, most)
    elif view.reason:
        yield "reason", "dim", one_line(view.reason, most)
