"""What an event tells of the attempt, the job and the step it is about."""

from __future__ import annotations

from typing import Any

from ...core.events import RESERVED, Event


def meta_of(event: Event, name: str) -> Any:
    return (event.meta or {}).get(name)


def started_job(event: Event) -> str:
    return event.subject if event.kind == "job.active" else str(meta_of(event, "jobId"))


def instance(event: Event) -> tuple[str, int]:
    return event.step or "", (event.meta or {}).get("n", 1)


def is_final(event: Event) -> bool:
    return isinstance(event.data, dict) and not event.data.get("willRetry")


def is_users(kind: str) -> bool:
    return kind != "log" and not kind.startswith(RESERVED)
