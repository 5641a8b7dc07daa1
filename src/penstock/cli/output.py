"""A run as one JSON object, and the answer of a command on stdout."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from ..flows.reducer import FlowView

OK, FAILED = 0, 1


def run_object(view: FlowView) -> dict[str, Any]:
    """The object `run --json` and `runs show --json` print. Every key is always there; times are ISO, durations ms."""
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
        "steps": {key: _step_object(step) for key, step in view.steps.items()},
        "emitted": view.emitted,
        "logs": view.logs,
        "lastEvent": view.last_event,
    }


def _step_object(step: Any) -> dict[str, Any]:
    fields = {field.encode_name: getattr(step, field.name) for field in msgspec.structs.fields(step)}
    return {key: value for key, value in fields.items() if value or key not in ("awaitType", "awaitData", "alsoAwaits")}


def print_json(value: Any) -> None:
    """One line of JSON; plain ASCII where the terminal knows no more."""
    print(json.dumps(value, ensure_ascii=not unicode_out(), separators=(", ", ": ")), flush=True)


def unicode_out() -> bool:
    """Whether stdout can show more than ASCII."""
    return (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")


def exit_code(view: FlowView) -> int:
    """0 for a completed run; failed, compensated and cancelled ones did not do what was asked."""
    return OK if view.status in ("completed", "running", "paused", "compensating") else FAILED
