"""Job ids as BullMQ can hold them: a job's key lies beside those of its queue, so some ids would be one of these."""

from __future__ import annotations

# `bull:<queue>:<word>` is the queue's own.
TAKEN = frozenset((
    "active", "completed", "delayed", "events", "failed", "id", "limiter", "marker", "meta", "metrics", "paused", "pc",
    "prioritized", "repeat", "stalled", "stalled-check", "wait", "waiting-children",
))  # fmt: skip
MARK = "~"  # no id of ours has it


def inside(id: str) -> str:
    """The id a job has in its queue."""
    return MARK + id if id in TAKEN else id


def outside(id: bytes) -> str:
    """The id we know it by."""
    return id.decode().removeprefix(MARK)
