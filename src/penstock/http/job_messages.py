"""Events of jobs as the message `{v, stream, event, jobId, queue, data}` of the queue and runner sockets."""

from __future__ import annotations

from typing import Any

import msgspec

from .shared_reader import LiveEvent

# What happened to a job, by the last word of the event's kind.
_EVENTS = {
    "added": "added",
    "active": "started",
    "started": "started",
    "progress": "progress",
    "log": "log",
    "partial": "partial",
    "completed": "completed",
    "failed": "failed",
    "retry": "retry",
    "cancelled": "cancelled",
    "returned": "returned",
}


def job_message(live: LiveEvent, stream: str) -> bytes | None:
    """Return the message of a job's or a step's event; None for events that concern no job."""
    event = live.event
    group, _, word = event.kind.rpartition(".")
    name = _EVENTS.get(word)
    if name is None or group not in ("", "job", "step", "runner"):
        return None
    message: dict[str, Any] = {
        "v": 1,
        "stream": stream,
        "event": name,
        "jobId": event.subject if event.flow is None else f"{event.flow}.{event.step}",
        "queue": _queue(live),
        "ts": event.ts,
        "data": event.data,
    }
    if event.flow is not None:
        message |= {"run": event.flow, "step": event.step}
    return msgspec.json.encode(message)


def _queue(live: LiveEvent) -> str | None:
    type_, _, id_ = live.stream.partition(":")[2].partition(":")
    if type_ == "queue":
        return id_
    meta = live.event.meta or {}
    found = meta.get("queue")
    return found if isinstance(found, str) else None
