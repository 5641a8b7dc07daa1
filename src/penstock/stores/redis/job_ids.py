"""Escapes job ids that collide with BullMQ's own keys: a job's key is beside those of its queue."""

from __future__ import annotations

# `bull:<queue>:<word>` belongs to the queue.
RESERVED = frozenset((
    "active", "completed", "delayed", "events", "failed", "id", "limiter", "marker", "meta", "metrics", "paused", "pc",
    "prioritized", "repeat", "stalled", "stalled-check", "wait", "waiting-children",
))  # fmt: skip
ESCAPE = "~"  # not allowed in an id of ours


def escape_id(id: str) -> str:
    """Return the id that a job has in BullMQ's keys."""
    return ESCAPE + id if id in RESERVED else id


def unescape_id(id: bytes) -> str:
    """Return the id that a job has for its users."""
    return id.decode().removeprefix(ESCAPE)
