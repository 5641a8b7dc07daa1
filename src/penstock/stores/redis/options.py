"""The terms of a job as BullMQ's options: what its workers in other languages go by, and what dashboards show."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from ...ports.unit import KeepJobs, NewJob, PublishedOptions
from .resp import Part

_encode = msgspec.json.Encoder().encode


def options_of(job: NewJob) -> Part:
    """What is written beside the options of the store's own."""
    if job.dedupe is None:
        return b"" if job.published is None else _alone(job.published)
    found = {} if job.published is None else _terms(job.published)
    found["de"] = {"id": job.dedupe.key}
    if job.dedupe.ttl_ms is not None:
        found["de"]["ttl"] = job.dedupe.ttl_ms
    return _encode(found)


@lru_cache(256)  # a handler's jobs all have the same
def _alone(terms: PublishedOptions) -> bytes:
    return _encode(_terms(terms))


def _terms(terms: PublishedOptions) -> dict[str, Any]:
    found: dict[str, Any] = {"attempts": terms.attempts}
    if terms.attempts > 1 and terms.backoff_ms:
        found["backoff"] = {"type": terms.backoff, "delay": terms.backoff_ms}
        if terms.jitter:
            found["backoff"]["jitter"] = 0.5  # half of it is up to chance, as it is here
    for name, keep in (("removeOnComplete", terms.keep_completed), ("removeOnFail", terms.keep_failed)):
        if keep is not None:
            found[name] = _removal(keep)
    return found


def _removal(keep: KeepJobs) -> Any:
    if keep.age_ms is None:
        return keep.count == 0 or (False if keep.count is None else keep.count)
    age = -(-keep.age_ms // 1000)  # in seconds, and rather too long than too short
    return {"age": age} if keep.count is None else {"age": age, "count": keep.count}
