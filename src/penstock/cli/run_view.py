"""A run as rows of text: what a picture of it shows, however it is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ..core.clock import Clock, from_iso
from ..core.durations import format_ms
from ..flows.reducer import FlowView, StepView

FOLD = 6  # instances of one step shown one by one; more become one row
SHOWN = 70  # characters of an error or of partial output
MARKS = {
    "completed": "✓", "failed": "✗", "running": "●", "retrying": "↻", "pending": "·", "waiting": "…", "timeout": "✗",
    "cancelled": "–",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One step instance, or many of one step folded together."""

    status: str
    name: str
    note: str = ""  # attempt, counts
    took: str = ""
    progress: float | None = None  # up to 100
    detail: str = ""


def rows_of(view: FlowView, now_ms: int) -> list[Row]:
    """The steps in the order they began; a step with many instances is one row and its failures."""
    by_step: dict[str, list[StepView]] = {}
    for step in view.steps.values():
        by_step.setdefault(step.step, []).append(step)
    rows: list[Row] = [] if by_step or view.status != "running" else [Row("pending", "waiting for a worker")]
    for name, steps in by_step.items():
        if len(steps) <= FOLD:
            rows += [_row(step, now_ms) for step in steps]
        else:
            rows.append(_folded(name, steps))
            rows += [_row(step, now_ms) for step in steps if step.status == "failed"][:FOLD]
    return rows


def elapsed(view: FlowView, now_ms: int) -> str:
    """How long the run took, or has taken so far."""
    if view.duration is not None:
        return format_ms(view.duration)
    return format_ms(max(now_ms - from_iso(view.started_at), 0)) if view.started_at else ""


def one_line(value: Any, limit: int = SHOWN) -> str:
    """A value on one line, shortened in the middle of nothing: text as it is, the rest as JSON."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _row(step: StepView, now_ms: int) -> Row:
    name = step.step if step.n == 1 else f"{step.step}#{step.n}"
    note = f"attempt {step.attempt}" if step.attempt > 1 else ""
    return Row(step.status, name, note, _took(step, now_ms), _percent(step), _detail(step, now_ms))


def _folded(name: str, steps: list[StepView]) -> Row:
    counts: dict[str, int] = {}
    for step in steps:
        counts[step.status] = counts.get(step.status, 0) + 1
    order = [status for status in MARKS if status in counts]
    worst = next((s for s in ("failed", "running", "retrying", "waiting", "pending") if s in counts), order[0])
    done = 100 * sum(step.completed_at is not None for step in steps) / len(steps)
    note = ", ".join(f"{counts[status]} {status}" for status in order)
    return Row(worst, f"{name} ×{len(steps)}", note, progress=done if worst in ("running", "pending") else None)


def _took(step: StepView, now_ms: int) -> str:
    if step.duration is not None:
        return format_ms(step.duration)
    if step.status == "running" and step.started_at is not None:
        return format_ms(max(now_ms - from_iso(step.started_at), 0))
    return ""


def _percent(step: StepView) -> float | None:
    value = step.progress
    if step.status != "running" or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(min(max(value, 0), 100))


def _detail(step: StepView, now_ms: int) -> str:
    if step.status == "retrying" and step.next_retry_at is not None:
        wait = max(from_iso(step.next_retry_at) - now_ms, 0)
        return one_line(f"again in {format_ms(wait)}: {step.error or ''}")
    if step.status in ("failed", "timeout", "retrying"):
        return one_line(step.error or "")
    if step.status == "waiting":
        return one_line(_awaited(step, now_ms), SHOWN * (1 + len(step.also_awaits)))
    if step.partials:
        return _tail(step.partials)
    if step.progress is not None and step.status == "running" and _percent(step) is None:
        return one_line(step.progress)
    return ""


def _awaited(step: StepView, now_ms: int) -> str:
    """All that a step waits for."""
    waits = [(one["type"], one["data"]) for one in step.also_awaits] + [(step.await_type, step.await_data)]
    return ", ".join(_one_awaited(type_, data if isinstance(data, dict) else {}, now_ms) for type_, data in waits)


def _one_awaited(type_: str | None, data: dict[str, Any], now_ms: int) -> str:
    match type_:
        case "time":
            until = data.get("resumeAt")
            left = f" (in {format_ms(max(from_iso(until) - now_ms, 0))})" if until else ""
            return f"until {until}{left}"
        case "event":
            held = f" {one_line(data['match'])}" if data.get("match") else ""
            return f"for {data.get('eventKind')}{held}"
        case _:
            return f"for trigger {data.get('name') or data.get('triggerId')}"


def _tail(partials: list[Any]) -> str:
    """The line being written, if the pieces are text; else the last piece."""
    if not isinstance(partials[-1], str):
        return one_line(partials[-1])
    text = "".join(chunk for chunk in partials[-200:] if isinstance(chunk, str))
    line = one_line(text.strip().rpartition("\n")[2], 10_000)
    return line if len(line) <= SHOWN else "…" + line[1 - SHOWN :]


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
