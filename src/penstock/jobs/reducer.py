"""The reducer of jobs: folds a job's events into its history. Output and durable calls fold alike for a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ..core.events import Event


class CallView(msgspec.Struct, rename="camel", omit_defaults=True):
    """A `ctx.run` of a step or a job. Status: running, completed, failed or cancelled."""

    status: str
    started_at: str | None = None
    duration: int | None = None
    tries: int | None = None
    size: int | None = None  # of the recorded value, in bytes
    error: str | None = None
    error_name: str | None = None  # the class of the exception
    attempt: int | None = None


class JobHistory(msgspec.Struct, rename="camel", omit_defaults=True):
    """A plain job, folded from its events."""

    id: str = ""
    name: str | None = None
    status: str = "waiting"
    attempt: int = 0
    added_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    progress: Any = None
    result: Any = None
    error: str | None = None
    reason: str | None = None  # why it was cancelled
    logs: list[dict[str, Any]] = []
    partials: list[Any] = []  # of its present attempt
    calls: dict[str, CallView] = {}  # its `ctx.run` calls, by name


def reduce_job(events: Iterable[Event], job: str | None = None) -> JobHistory:
    """Fold the events of one job. With `job`, select them from its queue's stream."""
    view = JobHistory()
    for event in events:
        if job is None or event.subject == job:
            _apply(view, event)
    return view


def _apply(view: JobHistory, event: Event) -> None:
    data = event.data if isinstance(event.data, dict) else {}
    meta = event.meta or {}
    match event.kind:
        case "job.added":
            view.id, view.name, view.added_at = event.subject, meta.get("name"), event.ts
            view.status = "delayed" if "due" in meta else "waiting"
        case "job.active":
            if view.attempt != meta.get("attempt", 1):
                view.partials = []
            cancel_calls(view.calls)
            view.status, view.attempt = "active", meta.get("attempt", 1)
            view.started_at, view.finished_at, view.reason = view.started_at or event.ts, None, None
        case "job.progress":
            view.progress = data.get("progress")
        case "job.partial":
            add_partial(view.partials, data, meta)
        case "call.started" | "call.completed" | "call.failed":
            change_call(view.calls, event.kind, data, meta)
        case "job.completed":
            view.status, view.result, view.finished_at, view.error = "completed", data.get("result"), event.ts, None
        case "job.failed":
            view.error, view.attempt = data.get("error"), meta.get("attempt", view.attempt)
            view.status = "delayed" if data.get("willRetry") else "failed"
            view.finished_at, view.reason = None if data.get("willRetry") else event.ts, None
            view.partials = []
            cancel_calls(view.calls)
        case "job.returned":
            view.status, view.attempt = "waiting", meta.get("attempt", view.attempt)
        case "job.cancelled":
            view.status, view.finished_at, view.reason = "cancelled", event.ts, data.get("reason")
            cancel_calls(view.calls)
        case "log":
            line = {"id": event.id, "ts": event.ts, "level": data.get("level"), "msg": data.get("msg")}
            line |= {"attempt": meta["attempt"]} if "attempt" in meta else {}
            view.logs.append(line | ({"fields": data["fields"]} if "fields" in data else {}))


def add_partial(partials: list[Any], data: dict[str, Any], meta: dict[str, Any]) -> None:
    """Add a chunk of output. One that is sent again replaces what was there: its handler ran again from the top."""
    index = _number(meta, "index")
    if index is not None:
        del partials[index:]
    partials.append(data.get("chunk"))


def change_call(calls: dict[str, CallView], kind: str, data: dict[str, Any], meta: dict[str, Any]) -> None:
    """Fold an event of a durable call."""
    name = _text(data, "call")
    if name is not None:
        calls[name] = CallView(
            "running" if kind == "call.started" else kind.removeprefix("call."),
            _text(data, "startedAt"),
            _number(data, "duration"),
            _number(data, "tries"),
            _number(data, "size"),
            _text(data, "error"),
            _text(data, "name"),
            _number(meta, "attempt"),
        )


def cancel_calls(calls: dict[str, CallView]) -> None:
    """Mark the calls that still ran when their attempt ended: nothing of them is recorded."""
    for call in calls.values():
        if call.status == "running":
            call.status = "cancelled"


def _text(values: dict[str, Any], key: str) -> str | None:
    found = values.get(key)
    return found if isinstance(found, str) else None


def _number(values: dict[str, Any], key: str) -> int | None:
    found = values.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) else None
