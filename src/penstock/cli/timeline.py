"""A run as a timeline: a bar for each step, under each other, along the time the run took."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ..core.clock import Clock, from_iso
from ..core.durations import format_ms
from ..flows.reducer import FlowView, StepView
from .run_view import ASCII, COLOURS, MARKS, RESULT, elapsed, end_of

MIN_BAR, NAME = 10, 28  # characters


class Timeline:
    """A run's steps along its time, at the moment it is drawn; give it to rich."""

    def __init__(self, view: FlowView, clock: Clock) -> None:
        self.view = view
        self._clock = clock

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now, view = self._clock.now_ms(), self.view
        unicode = options.encoding.startswith("utf")
        steps = list(view.steps.values())
        room = max((options.height or console.height) - 4, 5)
        hidden = len(steps) - room if options.is_terminal and len(steps) > room else 0
        colour = COLOURS.get(view.status, "")
        yield Text.assemble(
            (view.name or "run", "bold"), " ", (view.id, "dim"), "  ", (view.status, colour), "  ",
            (elapsed(view, now), "dim"),
        )  # fmt: skip
        if hidden:
            yield Text(f"  {hidden} more above", style="dim")
        if not steps and view.status == "running":
            yield Text("  waiting for a worker", style="dim")
        yield from self._bars(steps[hidden:], now, options.max_width, unicode)
        yield from self._end()

    def _bars(self, steps: list[StepView], now: int, width: int, unicode: bool) -> RenderResult:
        if self.view.started_at is None or not steps:
            return
        begin = from_iso(self.view.started_at)
        end = from_iso(self.view.completed_at) if self.view.completed_at else now
        names = [step.step if step.n == 1 else f"{step.step}#{step.n}" for step in steps]
        name = min(max(map(len, names)), NAME)
        bar = max(width - name - 22, MIN_BAR)
        for step, text in zip(steps, names, strict=True):
            yield _line(step, text[:name].ljust(name), (begin, max(end, begin + 1)), now, bar, unicode)

    def _end(self) -> RenderResult:
        for what, style, text in end_of(self.view, RESULT):
            yield Text.assemble((f"{what} ", style), text)


def _line(step: StepView, name: str, span: tuple[int, int], now: int, width: int, unicode: bool) -> Text:
    mark = MARKS.get(step.status, "?")
    colour = COLOURS.get(step.status, "")
    line = Text(f"  {mark if unicode else ASCII.get(mark, mark)} ", colour, no_wrap=True)
    line.append(f"{name}  ", "default not dim")
    start, end = extent(step, span, now, width)
    line.append(" " * start)
    line.append(("━" if unicode else "=") * (end - start), colour)
    line.append(" " * (width - end))
    if step.started_at is not None:
        until = from_iso(step.completed_at) if step.completed_at else now
        line.append(f"  {format_ms(max(until - from_iso(step.started_at), 0)):>9}", "dim default")
    line.append(f" ×{step.attempt}" if step.attempt > 1 else "", "yellow")
    line.append(" waits" if step.status == "waiting" else "", "blue")
    return line


def extent(step: StepView, span: tuple[int, int], now: int, width: int) -> tuple[int, int]:
    """The columns a step's bar covers, at least one once it has begun."""
    begin, end = span
    if step.started_at is None:
        return 0, 0
    per = width / (end - begin)
    start = min(max(int((from_iso(step.started_at) - begin) * per), 0), width - 1)
    until = from_iso(step.completed_at) if step.completed_at else min(now, end)
    return start, min(max(round((until - begin) * per), start + 1), width)
