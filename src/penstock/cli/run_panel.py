"""A run as a panel on a terminal, drawn by rich: rows of its steps, redrawn while it runs."""

from __future__ import annotations

import textwrap

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ..core.clock import Clock
from ..core.text import escape_line
from ..flows.reducer import RunView, display_status
from ..flows.run_record import WAITING
from .run_view import COLOURS, StepRow, build_rows, end_lines, format_elapsed, status_mark

MAX_RESULT_CHARS = 200  # of a result
BAR_CHARS = 16


class RunPanel:
    """A rich renderable of a run, as of the moment it is drawn."""

    def __init__(self, view: RunView, clock: Clock) -> None:
        self.view = view
        self._clock = clock

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = self._clock.now_ms()
        lines = _render_rows(build_rows(self.view, now), options.encoding.startswith("utf"), options.max_width)
        # Lines that do not fit the screen would scroll away on every redraw.
        room = max((options.height or console.height) - 4, 5)
        hidden = len(lines) - room if options.is_terminal and len(lines) > room else 0
        yield self._header(now)
        if hidden:
            yield Text(f"  {hidden} more above", style="dim")
        yield from lines[hidden:]
        for label, style, text in end_lines(self.view, MAX_RESULT_CHARS):
            yield Text.assemble((f"{label} ", style), text)

    def _header(self, now: int) -> Text:
        view, shown = self.view, display_status(self.view)
        status = (shown, COLOURS.get(shown, ""))
        spent = (format_elapsed(view, now), "dim")
        return Text.assemble(
            (escape_line(view.name or "run"), "bold"), " ", (escape_line(view.id), "dim"), "  ", status, " ", spent
        )


def _render_rows(rows: list[StepRow], unicode: bool, width: int) -> list[Text]:
    """Return the rows with aligned columns. What a step waits for gets lines of its own if it does not fit; anything
    else is cut."""
    name, note, took = (
        max((cell_len(getattr(row, part)) for row in rows), default=0) for part in ("name", "note", "took")
    )
    lines = []
    for row in rows:
        line = Text(f"  {status_mark(row.status, unicode)} ", COLOURS.get(row.status, ""), no_wrap=True)
        line.append(set_cell_size(row.name, name), "default not dim")
        line.append("  " + set_cell_size(row.note, note) if note else "", "not dim yellow")
        line.append(f"  {row.took:>{took}}", "dim default")
        if row.progress is not None:
            done = round(BAR_CHARS * row.progress / 100)
            line.append("  " + ("━" if unicode else "=") * done, "not dim cyan")
            line.append(("━" if unicode else "-") * (BAR_CHARS - done), "bright_black")
        colour = "not dim red" if row.status in ("failed", "retrying", "timeout") else "dim default"
        is_wide = row.status == WAITING and line.cell_len + 2 + cell_len(row.detail) > width
        line.append(f"  {row.detail}" if row.detail and not is_wide else "", colour)
        line.rstrip()
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
        if is_wide:
            lines += [Text(f"      {part}", "dim") for part in textwrap.wrap(row.detail, max(width - 6, 20))]
    return lines
