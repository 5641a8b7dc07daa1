"""History snapshots: a run's events without ids and times, saved in a file and compared with later runs."""

from __future__ import annotations

import json
import re
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from ..core.events import Event

UPDATE = "--penstock-update"
update_snapshots: ContextVar[bool] = ContextVar("penstock_update_snapshots", default=False)
"""Whether saved histories are overwritten; set by the pytest plugin."""

_VARYING_META = ("worker", "duration", "scheduledAt")
_VARYING_DATA = ("duration", "awaitDuration", "nextRetryAt", "resumeAt", "until", "delayMs", "stack")
_VARYING_TEXT = (
    (re.compile(r"\bt-[0-9a-f]{32}\.[\w-]{43}"), "TOKEN"),
    (re.compile(r"\b([tef])-[0-9a-f]{32}\b"), "WAIT"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "UUID"),
)


def normalize_event(event: Event, run: str) -> dict[str, Any]:
    """Return an event without ids, tokens, times, workers and durations."""
    meta = {key: value for key, value in (event.meta or {}).items() if key not in _VARYING_META}
    data = event.data
    if isinstance(data, dict) and event.kind.startswith(("flow.", "step.")):
        data = {key: value for key, value in data.items() if key not in _VARYING_DATA}
    found: dict[str, Any] = {"kind": event.kind, "step": event.step, "data": data, "meta": meta}
    text = json.dumps({k: v for k, v in found.items() if v not in (None, {})}, sort_keys=True, ensure_ascii=False)
    text = text.replace(run, "RUN")
    for pattern, word in _VARYING_TEXT:
        text = pattern.sub(word, text)
    return dict(json.loads(text))


def compare(found: list[dict[str, Any]], path: Path, what: str) -> None:
    """Compare a history with the saved one; save it if there is none yet or `--penstock-update` was passed.

    Raises AssertionError with the first difference.
    """
    __tracebackhide__ = True
    if update_snapshots.get() or not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_format(found), "utf-8")
        return
    saved = json.loads(path.read_text("utf-8"))
    if saved == found:
        return
    pairs = enumerate(zip(saved, found, strict=False))
    at = next((number for number, (then, now) in pairs if then != now), min(len(saved), len(found)))
    then, now = (history[at] if at < len(history) else "nothing more" for history in (saved, found))
    raise AssertionError(
        f"{what} differs from {path.name} at event {at + 1}:\n  saved {then}\n  now   {now}\n"
        f"If the new history is right: pytest {UPDATE}"
    )


def _format(history: list[dict[str, Any]]) -> str:
    """Format one event per line, so that a changed history is readable as a diff."""
    lines = ",\n".join(" " + json.dumps(event, ensure_ascii=False, sort_keys=True) for event in history)
    return f"[\n{lines}\n]\n"
