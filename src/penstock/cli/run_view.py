"""A run as plain lines of text: rows of its steps, its end and its failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ..core.clock import from_iso
from ..core.durations import format_ms
from ..core.text import escape_line
from ..core.tracebacks import describe_error, format_frames
from ..flows.reducer import RunView, StepView, display_status
from ..flows.run_record import WAITING
from ..jobs.reducer import CallView

MAX_INSTANCES = 6  # of one step on rows of their own; more are folded into one row
MAX_CALLS = 6  # of one step on rows of their own: the latest, and those that failed or run
MAX_FAILURES = 3  # shown with their traceback
MAX_WAIT_CHARS = 140  # of what a step waits for, and until when
MAX_DETAIL_CHARS = 70  # of an error or of partial output
MAX_TEXT_CHARS = 10_000  # of a result in plain lines
NOT_CLAIMED = "no worker has claimed it"
MARKS = {
    "completed": "✓", "failed": "✗", "running": "●", "retrying": "↻", "pending": "·", "waiting": "…", "timeout": "✗",
    "cancelled": "–", "skipped": "○",
}  # fmt: skip
ASCII = {"✓": "+", "✗": "x", "●": "*", "↻": "~", "·": ".", "…": "_", "–": "-", "○": "o"}
COLOURS = {
    "running": "cyan", "completed": "green", "failed": "red", "retrying": "yellow", "pending": "dim", "waiting": "blue",
    "timeout": "red", "cancelled": "magenta", "compensating": "yellow", "compensated": "yellow",
    "paused": "magenta",
}  # fmt: skip


_PREPOSITIONS = {"completed": "in", "running": "for", "waiting": "for"}


def render_text(view: RunView, now_ms: int, unicode: bool = True) -> str:
    """Return a run as plain lines of text, for a pipe."""
    rows = build_rows(view, now_ms)
    status = display_status(view)
    lines = [" ".join(part for part in (view.name, view.id, status, format_elapsed(view, now_ms)) if part)]
    name = max((len(row.name) for row in rows), default=0)
    took = max((len(row.took) for row in rows), default=0)
    for row in rows:
        percent = f"{row.progress:.0f} %" if row.progress is not None else ""
        rest = "  ".join(part for part in (row.note, percent, row.detail) if part)
        lines.append(f"  {status_mark(row.status, unicode)} {row.name:<{name}}  {row.took:>{took}}  {rest}".rstrip())
    lines += [f"{label} {text}" for label, _, text in end_lines(view, MAX_TEXT_CHARS)]
    return "\n".join(map(escape_line, lines))


def end_lines(view: RunView, max_chars: int) -> Iterator[tuple[str, str, str]]:
    """Yield the last lines of a run: label, style and text."""
    for step, kinds in (view.unmet or {}).items():
        yield "unmet", "yellow", one_line(f"{step} never started: {', '.join(kinds)} did not arrive", max_chars)
    if view.status == "completed":
        yield "result", "dim", one_line(view.result, max_chars)
    elif view.error is not None:
        yield "error", "red", one_line(view.error, max_chars)
    elif view.reason:
        yield "reason", "dim", one_line(view.reason, max_chars)
    if view.unreadable_events:
        ids = ", ".join(view.unreadable_events)
        text = f"{ids}; `penstock events {view.id}` shows what is stored"
        yield "unreadable events", "yellow", one_line(text, max_chars)


def failure_lines(view: RunView) -> list[str]:
    """Return where the failed steps of a run failed: the frames of the user's code, and the command that shows more."""
    failed = [step for step in view.steps.values() if step.status == "failed"]
    lines: list[str] = []
    for step in failed[:MAX_FAILURES]:
        name = step.step if step.n == 1 else f"{step.step}#{step.n}"
        error = {"name": step.error_name, "error": step.error, "frames": step.frames, "deadLetter": step.dead_letter}
        lines += [escape_line(f"step {name} failed:"), *error_lines(error)]
    if len(failed) > MAX_FAILURES:
        lines.append(f"{len(failed) - MAX_FAILURES} more steps failed")
    return lines


def error_lines(error: Mapping[str, Any]) -> list[str]:
    """Return a recorded error as Python prints it, with the frames of the user's code only."""
    frames = error.get("frames") or []
    lines = ["Traceback (most recent call last):", *format_frames(frames)] if frames else []
    lines.append(one_line(describe_error(error.get("name"), error.get("error")), MAX_TEXT_CHARS))
    if error.get("deadLetter"):
        lines.append(f"`penstock dlq show {error['deadLetter']}` shows its input and its whole stack.")
    return [escape_line(line) for line in lines]


def format_elapsed(view: RunView, now_ms: int) -> str:
    """Return how long the run took, runs or waits: "in 12 ms", "for 3.2 s", "after 3.2 s"."""
    status = display_status(view)
    since = _waiting_since(view) if status == WAITING else None
    since = since or view.started_at
    if since is None:
        return ""
    until = from_iso(view.completed_at) if view.completed_at else now_ms
    return f"{_PREPOSITIONS.get(status, 'after')} {format_ms(max(until - from_iso(since), 0))}"


def _waiting_since(view: RunView) -> str | None:
    """Return since when nothing of the run does anything but wait."""
    found = [
        min([step.await_since, *(one["since"] for one in step.also_awaits if one.get("since"))])
        for step in view.steps.values()
        if step.status == WAITING and step.await_since is not None
    ]
    return max(found, default=None)


def one_line(value: Any, max_chars: int = MAX_DETAIL_CHARS) -> str:
    """Return a value on one line, cut at the end: text as it is, anything else as JSON."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


@dataclass(frozen=True)
class StepRow:
    """One instance of a step, or many folded into one."""

    status: str
    name: str
    note: str = ""  # attempt, counts
    took: str = ""
    progress: float | None = None  # up to 100
    detail: str = ""


def build_rows(view: RunView, now_ms: int) -> list[StepRow]:
    """Return the steps in the order they started. Many instances of a step become one row, plus their failures."""
    by_step: dict[str, list[StepView]] = {}
    for step in view.steps.values():
        by_step.setdefault(step.step, []).append(step)
    rows: list[StepRow] = [] if by_step or view.status != "running" else [StepRow("pending", NOT_CLAIMED)]
    for name, steps in by_step.items():
        if len(steps) <= MAX_INSTANCES:
            rows += [row for step in steps for row in (_build_row(step, now_ms), *_call_rows(step, now_ms))]
        else:
            rows.append(_fold_rows(name, steps))
            rows += [_build_row(step, now_ms) for step in steps if step.status == "failed"][:MAX_INSTANCES]
    return rows


def _build_row(step: StepView, now_ms: int) -> StepRow:
    name = escape_line(step.step if step.n == 1 else f"{step.step}#{step.n}")
    note = f"attempt {step.attempt}" if step.attempt > 1 else ""
    return StepRow(step.status, name, note, _took(step, now_ms), _percent(step), _detail(step, now_ms))


def select_calls(step: StepView) -> tuple[list[tuple[str, CallView]], int]:
    """Return the calls of a step that get a row: the latest, and those that failed or run; and how many do not."""
    calls = list(step.calls.items())
    shown = calls[-MAX_CALLS:]
    earlier = calls[: -len(shown)] if shown else []
    shown = [one for one in earlier if one[1].status in ("failed", "running")][-MAX_CALLS:] + shown
    return shown, len(calls) - len(shown)


def _call_rows(step: StepView, now_ms: int) -> list[StepRow]:
    """Return the `ctx.run` calls of a step, indented under it."""
    shown, hidden = select_calls(step)
    rows = [_call_row(name, call, now_ms) for name, call in shown]
    return rows if not hidden else [StepRow("completed", f"  {hidden} more calls"), *rows]


def _call_row(name: str, call: CallView, now_ms: int) -> StepRow:
    took = ""
    if call.duration is not None:
        took = format_ms(call.duration)
    elif call.status == "running" and call.started_at is not None:
        took = format_ms(max(now_ms - from_iso(call.started_at), 0))
    note = f"{call.tries} tries" if call.tries is not None and call.tries > 1 else ""
    detail = one_line(describe_error(call.error_name, call.error)) if call.error is not None else ""
    if call.size is not None:
        detail = f"{call.size:,} bytes"
    return StepRow(call.status, escape_line(f"  {name.removesuffix('#1')}"), note, took, detail=detail)


def _fold_rows(name: str, steps: list[StepView]) -> StepRow:
    counts: dict[str, int] = {}
    for step in steps:
        counts[step.status] = counts.get(step.status, 0) + 1
    order = [status for status in MARKS if status in counts]
    worst = next((s for s in ("failed", "running", "retrying", "waiting", "pending") if s in counts), order[0])
    done = 100 * sum(step.completed_at is not None for step in steps) / len(steps)
    note = ", ".join(f"{counts[status]} {status}" for status in order)
    return StepRow(
        worst, escape_line(f"{name} ×{len(steps)}"), note, progress=done if worst in ("running", "pending") else None
    )


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
        return one_line(f"retry in {_time_left(step.next_retry_at, now_ms)}: {step.error or ''}")
    if step.status in ("failed", "timeout", "retrying"):
        return one_line(step.error or "")
    if step.status == "waiting":
        return one_line(describe_waits(step, now_ms), MAX_WAIT_CHARS * (1 + len(step.also_awaits)))
    if step.status == "pending":
        return NOT_CLAIMED
    if step.partials:
        return _last_partial(step.partials)
    if step.progress is not None and step.status == "running" and _percent(step) is None:
        return one_line(step.progress)
    return ""


def describe_waits(step: StepView, now_ms: int) -> str:
    """Return what a step waits for and until when."""
    waits = [*((one["type"], one["data"]) for one in step.also_awaits), (step.await_type, step.await_data)]
    return ", ".join(_describe_wait(type_, data if isinstance(data, dict) else {}, now_ms) for type_, data in waits)


def _describe_wait(type_: str | None, data: dict[str, Any], now_ms: int) -> str:
    until = data.get("resumeAt") or data.get("until")
    left = f" until {until} (in {_time_left(until, now_ms)})" if until else ""
    match type_:
        case "time":
            return f"sleeping{left}"
        case "event":
            match = f" {one_line(data['match'])}" if data.get("match") else ""
            return f"waiting for event {data.get('eventKind')}{match}{left}"
        case "call":
            runs = f"{data['runs']:,} runs" if isinstance(data.get("runs"), int) else f"run {data.get('run')}"
            return f"waiting for {runs} of flow {data.get('flow')}{left}"
        case _:
            return f"waiting for trigger {(data.get('name') or data.get('triggerId'))!r}{left}"


def _time_left(until: Any, now_ms: int) -> str:
    """Return how long it is until a time; "?" if a damaged event has another value there."""
    try:
        return format_ms(max(from_iso(until) - now_ms, 0))
    except (AttributeError, TypeError, ValueError):
        return "?"


def _last_partial(partials: list[Any]) -> str:
    """Return the line being written if the chunks are text, otherwise the last chunk."""
    if not isinstance(partials[-1], str):
        return one_line(partials[-1])
    text = "".join(chunk for chunk in partials[-200:] if isinstance(chunk, str))
    line = one_line(text.strip().rpartition("\n")[2], MAX_TEXT_CHARS)
    return line if len(line) <= MAX_DETAIL_CHARS else "…" + line[1 - MAX_DETAIL_CHARS :]


def status_mark(status: str, unicode: bool) -> str:
    """Return the mark of a status, in ASCII where the terminal has no Unicode."""
    mark = MARKS.get(status, "?")
    return mark if unicode else ASCII.get(mark, mark)
