"""A job's id and options as BullMQ writes them, for its workers in other languages and for dashboards."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from ...core.trace_context import HEADER
from ...ports.unit import KeepJobs, NewJob, PublishedOptions
from .resp import Part

_encode = msgspec.json.Encoder().encode
# A job's key is beside those of its queue: `bull:<queue>:<word>` belongs to the queue.
RESERVED = frozenset((
    "active", "completed", "delayed", "events", "failed", "id", "limiter", "marker", "meta", "metrics", "paused", "pc",
    "prioritized", "repeat", "stalled", "stalled-check", "wait", "waiting-children",
))  # fmt: skip
ESCAPE = "~"  # not allowed in an id of ours
HEX = "~hex:"  # before an id that is not UTF-8


def escape_id(id: str) -> str | bytes:
    """Return the id that a job has in BullMQ's keys: escaped if it collides with a key of the queue."""
    if id in RESERVED:
        return ESCAPE + id
    return _from_hex(id) if id.startswith(HEX) else id


def _from_hex(id: str) -> str | bytes:
    try:
        return bytes.fromhex(id[len(HEX) :])
    except ValueError:
        return id


def unescape_id(id: bytes) -> str:
    """Return the id that a job has for its users: text that `escape_id` converts to the same bytes."""
    try:
        text = id.decode()
    except UnicodeDecodeError:
        return HEX + id.hex()
    if not text.startswith(ESCAPE):
        return text
    if isinstance(escape_id(text), bytes):
        return HEX + id.hex()
    return text[1:] if text[1:] in RESERVED else text


def bullmq_options(job: NewJob) -> Part:
    """Return the options as JSON, without the job's id."""
    if job.dedupe is None:
        return b"" if job.published is None else _encode_published(job.published)
    found = {} if job.published is None else _to_dict(job.published)
    found["de"] = {"id": job.dedupe.key}
    if job.dedupe.ttl_ms is not None:
        found["de"]["ttl"] = job.dedupe.ttl_ms
    return _encode(found)


def _encode_published(options: PublishedOptions) -> bytes:
    return _encoded(options) if options.trace is None else _encode(_to_dict(options))


@lru_cache(256)  # all jobs of a handler have the same
def _encoded(options: PublishedOptions) -> bytes:
    return _encode(_to_dict(options))


def _to_dict(options: PublishedOptions) -> dict[str, Any]:
    found: dict[str, Any] = {"attempts": options.attempts}
    if options.attempts > 1 and options.backoff_ms:
        found["backoff"] = {"type": options.backoff, "delay": options.backoff_ms}
        if options.jitter:
            found["backoff"]["jitter"] = 0.5  # half of the delay is random, as in our workers
    for name, keep in (("removeOnComplete", options.keep_completed), ("removeOnFail", options.keep_failed)):
        if keep is not None:
            found[name] = _removal(keep)
    if options.trace is not None:  # as the telemetry of BullMQ writes it
        found["tm"] = _encode({HEADER: options.trace}).decode()
    return found


def _removal(keep: KeepJobs) -> Any:
    if keep.age_ms is None:
        return keep.count == 0 or (False if keep.count is None else keep.count)
    age = -(-keep.age_ms // 1000)  # in seconds, rounded up
    return {"age": age} if keep.count is None else {"age": age, "count": keep.count}
