"""The reducer of jobs: folds a job's events into its history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ..core.events import Event


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
    logs: list[dict[str, Any]] = []
    partials: list[Any] = []


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
            view.status, view.attempt = "active", meta.get("attempt", 1)
            view.started_at, view.finished_at = view.started_at or event.ts, None
        case "job.progress":
            view.progress = data.get("progress")
        case "job.partial":
            view.partials.append(data.get("chunk"))
        case "job.completed":
            view.status, view.result, view.finished_at, view.error = "completed", data.get("result"), event.ts, None
        case "job.failed":
            view.error, view.attempt = data.get("error"), meta.get("attempt", view.attempt)
            view.status = "delayed" if data.get("willRetry") else "failed"
            view.finished_at = None if data.get("willRetry") else event.ts
        case "job.returned":
            view.status, view.attempt = "waiting", meta.get("attempt", view.attempt)
        case "job.cancelled":
            view.status, view.finished_at = "cancelled", event.ts
        case "log":
            view.logs.append({"ts": event.ts, "level": data.get("level"), "msg": data.get("msg")})
