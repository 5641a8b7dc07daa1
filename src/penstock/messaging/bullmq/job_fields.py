"""What BullMQ stores with a job and a claim does not have: its options and its time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

import msgspec

from ...core.ids import digest
from ...core.retry import Backoff, RetryPolicy
from ...core.trace_context import read_carrier
from ...ports.unit import KeepJobs

_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,150}")


class JobFields(msgspec.Struct, frozen=True):
    """The options and the time of a job, as its producer set them."""

    opts: Mapping[str, Any] = {}
    timestamp: str = ""

    @classmethod
    def read(cls, opts: bytes | None, timestamp: bytes | None) -> JobFields:
        """Read the fields. Options that cannot be read count as none: another program may have written anything."""
        try:
            found = msgspec.json.decode(opts or b"{}")
        except (msgspec.MsgspecError, RecursionError):
            found = {}
        return cls(found if isinstance(found, dict) else {}, (timestamp or b"").decode(errors="replace"))

    @property
    def trace(self) -> str | None:
        """The `traceparent` that the telemetry of BullMQ has put into the options of the job."""
        return read_carrier(self.opts.get("tm"))

    def retry(self, default: RetryPolicy) -> RetryPolicy:
        """Return the retry policy of the job; what it does not set is as in the default."""
        attempts, backoff = self.opts.get("attempts"), self.opts.get("backoff")
        if not _is_count(attempts) or attempts < 1:
            attempts = default.attempts
        if _is_count(backoff):
            backoff = {"type": "fixed", "delay": backoff}
        if not isinstance(backoff, Mapping):
            return RetryPolicy(attempts, default.backoff)
        kind: Any = "exponential" if backoff.get("type") == "exponential" else "fixed"
        delay = backoff.get("delay", 0)
        jitter = bool(backoff.get("jitter"))
        return RetryPolicy(attempts, Backoff(kind, delay if _is_count(delay) else 0, 86_400_000, jitter))

    def keep(self, option: str, default: KeepJobs | None) -> KeepJobs | None:
        """Return what `removeOnComplete` or `removeOnFail` says; the default if the job has neither."""
        value = self.opts.get(option)
        if value is True:
            return KeepJobs(count=0)
        if value is False:
            return None
        if _is_count(value):
            return KeepJobs(count=value)
        if isinstance(value, Mapping):
            count, age = value.get("count"), value.get("age")
            return KeepJobs(count if _is_count(count) else None, age * 1000 if _is_count(age) else None)
        return default


def name_effect(queue: str, id: str, timestamp: str) -> str:
    """Return the idempotency key of a job's effect. BullMQ numbers its jobs, and starts again at 1 when a queue was
    deleted: the time makes the difference."""
    key = f"{queue}-{id}-{timestamp}"
    return key if _PLAIN.fullmatch(key) else f"bullmq-{digest(key.encode(errors='surrogateescape'))}"


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**53
