"""What a command prints and asks: JSON, a run, its exit code, a progress bar, a question. Secrets are hidden."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from ..core.redaction import Redactor
from ..core.text import escape_json, escape_line, escape_lines
from ..flows.reducer import RunView, StepView
from ..flows.run_record import OPEN
from ..settings import Settings
from .errors import EXIT_FAILED, EXIT_OK, colour_text, warn
from .options import CommonOptions

_YES_HELP = "Do not ask for confirmation. Without a terminal, such as in a script, there is no prompt."
Yes = Annotated[bool, Parameter(name=("--yes", "-y"), negative="", show_default=False, help=_YES_HELP)]
Reveal = Annotated[bool, Parameter(negative="", show_default=False, help="Show values that 'redact' would hide.")]


def run_to_dict(view: RunView) -> dict[str, Any]:
    """Return what `run --json` and `runs show --json` print. Every key is present; times are ISO, durations ms."""
    return {
        "id": view.id,
        "flow": view.name,
        "status": view.status,
        "version": view.version,
        "forkedFrom": view.forked_from,
        "correlationId": view.correlation_id,
        "startedAt": view.started_at,
        "completedAt": view.completed_at,
        "duration": view.duration,
        "input": view.input,
        "result": view.result,
        "error": view.error,
        "reason": view.reason,
        "unmet": view.unmet,
        "steps": {key: _step_to_dict(step) for key, step in view.steps.items()},
        "state": view.state,
        "emitted": view.emitted,
        "logs": view.logs,
        "lastEvent": view.last_event,
        "unreadable": view.unreadable,
        "unreadableEvents": view.unreadable_events,
    }


_ONLY_IF_SET = (
    "awaitType",
    "awaitData",
    "awaitSince",
    "alsoAwaits",
    "errorName",
    "file",
    "line",
    "frames",
    "deadLetter",
)


def _step_to_dict(step: StepView) -> dict[str, Any]:
    fields = {field.encode_name: getattr(step, field.name) for field in msgspec.structs.fields(step)}
    fields["calls"] = msgspec.to_builtins(step.calls)
    return {key: value for key, value in fields.items() if value or key not in _ONLY_IF_SET}


def exit_code(view: RunView) -> int:
    """Return 0 unless the run failed, was compensated or cancelled."""
    return EXIT_OK if view.status in ("completed", *OPEN) else EXIT_FAILED


def print_json(value: Any) -> None:
    """Print one line of JSON, in ASCII where the terminal has no Unicode."""
    text = json.dumps(value, ensure_ascii=not has_unicode_output(), separators=(", ", ": "))
    print(escape_json(text), flush=True)


def print_text(*lines: str, colour: str = "") -> None:
    """Print lines for people, in a colour (an ANSI number) on a terminal. Control characters are escaped: the text may
    come from anyone."""
    print(colour_text(escape_lines("\n".join(lines)), colour), flush=True)


def has_unicode_output() -> bool:
    """Return whether stdout can show more than ASCII."""
    return (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")


def confirm(question: str, yes: bool) -> bool:
    """Ask before something that cannot be undone, and return whether to go on. A script is never asked."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    sys.stderr.write(f"{escape_line(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    warn("Nothing was done.")
    return False


@contextmanager
def show_progress(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar at a terminal. Yield the function to call after each of `total` pieces of work."""
    if not sys.stderr.isatty() or total < 2:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)


class SecretFilter:
    """Hides the keys named by the setting `redact`; nothing with --reveal. The store keeps values in the clear."""

    def __init__(self, common: CommonOptions, reveal: bool) -> None:
        settings = Settings.load({"url": common.url, "dir": common.dir})
        self._redactor = Redactor(() if reveal else settings.redact)

    def redact_fields(self, row: dict[str, Any], *keys: str) -> dict[str, Any]:
        """Return the row with secrets hidden in the values of these keys."""
        return {key: self._redactor.redact_value(value) if key in keys else value for key, value in row.items()}

    def redact_value(self, key: str, value: Any) -> Any:
        """Return the value of a key that may itself name a secret."""
        return self._redactor.redact_value({key: value})[key]
