"""JSON on stdout, a run as one JSON object, and the exit code of a run."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from ..flows.reducer import RunView, StepView
from .errors import EXIT_FAILED, EXIT_OK


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
        "emitted": view.emitted,
        "logs": view.logs,
        "lastEvent": view.last_event,
    }


def _step_to_dict(step: StepView) -> dict[str, Any]:
    fields = {field.encode_name: getattr(step, field.name) for field in msgspec.structs.fields(step)}
    return {key: value for key, value in fields.items() if value or key not in ("awaitType", "awaitData", "alsoAwaits")}


def exit_code(view: RunView) -> int:
    """Return 0 unless the run failed, was compensated or cancelled."""
    return EXIT_OK if view.status in ("completed", "running", "paused", "compensating") else EXIT_FAILED


def print_json(value: Any) -> None:
    """Print one line of JSON, in ASCII where the terminal has no Unicode."""
    print(json.dumps(value, ensure_ascii=not has_unicode_output(), separators=(", ", ": ")), flush=True)


def has_unicode_output() -> bool:
    """Return whether stdout can show more than ASCII."""
    return (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
