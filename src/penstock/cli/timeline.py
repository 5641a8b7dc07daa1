"""A run as a timeline: one bar per step along the time the run took."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ..core.clock import Clock, from_iso
from ..core.durations import format_ms
from ..core.text import escape_line
from ..flows.reducer import RunView, StepView, display_status
from ..jobs.reducer import CallView
from .run_panel import MAX_RESULT_CHARS
from .run_view import ASCII, COLOURS, MARKS, NOT_CLAIMED, end_lines, format_elapsed, select_calls

MIN_BAR_CHARS, MAX_NAME_CHARS = 10, 28


class Timeline:
    """A rich renderable of a run's steps along its time, as of the moment it is drawn."""

    def __init__(self, view: RunView, clock: Clock) -> None:
        self.view = view
        self._clock = clock

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now, view = self._clock.now_ms(), self.view
        unicode = options.encoding.startswith("utf")
        steps = list(view.steps.values())
        room = max((options.height or console.height) - 4, 5)
        hidden = len(steps) - room if options.is_terminal and len(steps) > room else 0
        status = display_status(view)
        colour = COLOURS.get(status, "")
        yield Text.assemble(
            (escape_line(view.name or "run"), "bold"), " ", (escape_line(view.id), "dim"), "  ", (status, colour), "  ",
            (format_elapsed(view, now), "dim"),
        )  # fmt: skip
        if hidden:
            yield Text(f"  {hidden} more above", style="dim")
        if not steps and view.status == "running":
            yield Text(f"  {NOT_CLAIMED}", style="dim")
        yield from self._bars(steps[hidden:], now, options.max_width, unicode)
        yield from self._end()

    def _bars(self, steps: list[StepView], now: int, width: int, unicode: bool) -> RenderResult:
        if self.view.started_at is None or not steps:
            return
        start = from_iso(self.view.started_at)
        end = from_iso(self.view.completed_at) if self.view.completed_at else now
        names = [escape_line(step.step if step.n == 1 else f"{step.step}#{step.n}") for step in steps]
        calls = [select_calls(step) for step in steps]
        texts = [escape_line(f"  {key.removesuffix('#1')}") for shown, _ in calls for key, _call in shown]
        name = min(max(map(len, (*names, *texts))), MAX_NAME_CHARS)
        bar = max(width - name - 25, MIN_BAR_CHARS)
        span = (start, max(end, start + 1))
        for step, text, (shown_calls, hidden) in zip(steps, names, calls, strict=True):
            yield _line(step, text[:name].ljust(name), span, now, bar, unicode)
            if hidden:
                yield Text(f"      {hidden} more calls", style="dim")
            for call_name, call in shown_calls:
                shown = escape_line(f"  {call_name.removesuffix('#1')}")[:name].ljust(name)
                yield _call_line(call, shown, span, now, bar, unicode)

    def _end(self) -> RenderResult:
        for label, style, text in end_lines(self.view, MAX_RESULT_CHARS):
            yield Text.assemble((f"{label} ", style), text)


def _line(step: StepView, name: str, span: tuple[int, int], now: int, width: int, unicode: bool) -> Text:
    mark = MARKS.get(step.status, "?")
    colour = COLOURS.get(step.status, "")
    line = Text(f"  {mark if unicode else ASCII.get(mark, mark)} ", colour, no_wrap=True)
    line.append(f"{name}  ", "default not dim")
    start, end = bar_columns(step, span, now, width)
    line.append(" " * start)
    line.append(("━" if unicode else "=") * (end - start), colour)
    line.append(" " * (width - end))
    if step.started_at is not None:
        until = from_iso(step.completed_at) if step.completed_at else now
        line.append(f"  {format_ms(max(until - from_iso(step.started_at), 0)):>9}", "dim default")
    line.append(f" ×{step.attempt}" if step.attempt > 1 else "", "yellow")
    line.append(" waiting" if step.status == "waiting" else "", "blue")
    return line


def _call_line(call: CallView, name: str, span: tuple[int, int], now: int, width: int, unicode: bool) -> Text:
    """Return the thin bar of a `ctx.run` call, under its step."""
    mark, colour = MARKS.get(call.status, "?"), COLOURS.get(call.status, "")
    line = Text(f"  {mark if unicode else ASCII.get(mark, mark)} ", colour, no_wrap=True)
    line.append(f"{name}  ", "dim default")
    start = from_iso(call.started_at) if call.started_at is not None else span[0]
    took = call.duration if call.duration is not None else max(now - start, 0)
    left, right = _columns(start, start + took, span, width)
    line.append(" " * left + ("─" if unicode else "-") * (right - left), colour)
    line.append(" " * (width - right) + f"  {format_ms(took):>9}", "dim default")
    line.append(f" ×{call.tries}" if call.tries is not None and call.tries > 1 else "", "yellow")
    return line


def bar_columns(step: StepView, span: tuple[int, int], now: int, width: int) -> tuple[int, int]:
    """Return the first and last column of a step's bar: at least one wide once the step has started."""
    if step.started_at is None:
        return 0, 0
    until = from_iso(step.completed_at) if step.completed_at else min(now, span[1])
    return _columns(from_iso(step.started_at), until, span, width)


def _columns(since: int, until: int, span: tuple[int, int], width: int) -> tuple[int, int]:
    run_start, run_end = span
    columns_per_ms = width / (run_end - run_start)
    start = min(max(int((since - run_start) * columns_per_ms), 0), width - 1)
    return start, min(max(round((until - run_start) * columns_per_ms), start + 1), width)
