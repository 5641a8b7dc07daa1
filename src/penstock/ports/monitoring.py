"""What operators read from a store: which workers are alive, and what happened to jobs by the minute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker that reported itself. It counts as alive until `expires`."""

    id: str
    facts: bytes  # JSON that belongs to the worker, opaque to the store
    seen: int  # its last report, by the store's clock
    expires: int


class Presence(Protocol):
    """The workers that are alive. Nothing that is claimed or committed depends on it."""

    async def report_worker(self, id: str, facts: bytes, ttl_ms: int) -> None:
        """Write that a worker is alive, and for how long without another report."""
        ...

    async def remove_worker(self, id: str) -> None:
        """Forget a worker that has stopped. An unknown id is ignored."""
        ...

    async def workers(self) -> list[WorkerRow]:
        """Return the workers that have not expired, by id."""
        ...


MINUTE_MS = 60_000
RATES_KEPT_MS = 7 * 86_400_000


class MinuteCounts(msgspec.Struct, frozen=True):
    """What happened to the jobs of a queue in one minute."""

    queue: str
    minute: int  # its start, in milliseconds
    added: int = 0
    completed: int = 0
    failed: int = 0  # for good
    retried: int = 0  # attempts that failed, with another one to come


class QueueRates(Protocol):
    """Counts by minute, kept for a week. Processes add to them every few seconds, beside their commits."""

    async def add_counts(self, counts: Sequence[MinuteCounts]) -> None:
        """Add to what is stored."""
        ...

    async def rates(self, queue: str | None, since: int) -> list[MinuteCounts]:
        """Return the minutes since then in which something happened, of one queue or of all, by minute and queue."""
        ...


class KeyRow(msgspec.Struct, frozen=True):
    """Open jobs of a queue with the same order key or rate key, in one state."""

    key: str
    state: str
    count: int


class QueueKeys(Protocol):
    """The keys of a queue: what its order keys and its limits per key apply to."""

    async def open_keys(self, queue: str, look: int) -> list[KeyRow]:
        """Return how many jobs of each key wait, are held, delayed or active. Of each of these states the first `look`
        jobs are read. A job has its order key, else its rate key; jobs with neither are left out."""
        ...


class ErrorGroupRow(msgspec.Struct, frozen=True):
    """Waiting jobs of a dead-letter queue with the same error group."""

    group: str
    count: int
    first: int  # when the oldest of them was added
    last: int
    sample: str  # id of the newest


class ErrorGroups(Protocol):
    """Dead letters by error group. The counts come from an index; no letter is read."""

    async def error_groups(self, queue: str) -> list[ErrorGroupRow]:
        """Return the groups of a dead-letter queue, the largest first."""
        ...

    async def jobs_of_error_group(
        self, queue: str, group: str, *, after: str | None = None, limit: int = 50
    ) -> list[str]:
        """Return the ids of a group's jobs, oldest first. `after` is the last one of the page before."""
        ...
