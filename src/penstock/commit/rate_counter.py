"""Counts what happens to jobs, by queue and minute, and adds it to the store every few seconds.

Counting costs a commit less than a microsecond per unit, because it writes nothing. The price: a process that is killed
loses the counts of its last seconds, and a report whose answer is lost may count twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..core.errors import StoreError
from ..core.outage_retry import OutageLog
from ..ports.monitoring import MINUTE_MS, MinuteCounts, QueueRates
from ..ports.unit import CommitReply, Committed, Completed, Dead, RetryAt, Unit

FLUSH_INTERVAL_S = 5.0
MAX_PENDING = 10_000  # queues and minutes; more only pile up while the store cannot be reached
_KINDS = {Completed: "completed", Dead: "failed", RetryAt: "retried"}


class RateCounter:
    """The counts of one process that are not in the store yet."""

    def __init__(self, store: QueueRates, outages: OutageLog) -> None:
        self._store = store
        self._outages = outages
        self._loop = asyncio.get_running_loop()
        self._counts: dict[tuple[int, str, str], int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    def count(self, units: Sequence[Unit], reply: CommitReply) -> None:
        """Count what a commit changed, in the minute of the store's clock."""
        minute, counts = reply.now // MINUTE_MS, self._counts
        for unit, receipt in zip(units, reply.receipts, strict=True):
            if type(receipt) is not Committed or receipt.repeated:
                continue
            kind = _KINDS.get(type(unit.outcome))  # type: ignore[arg-type]
            if kind is not None and unit.claim is not None:
                key = (minute, unit.claim.queue, kind)
                counts[key] = counts.get(key, 0) + 1
            if unit.jobs:
                for job, is_new in zip(unit.jobs, receipt.added, strict=False):
                    if is_new:
                        key = (minute, job.queue, "added")
                        counts[key] = counts.get(key, 0) + 1
        if counts and self._timer is None:
            self._timer = self._loop.call_later(FLUSH_INTERVAL_S, self._start_flush)

    async def flush(self) -> None:
        """Add the counts to the store. If it cannot be reached, they are kept for the next time."""
        taken, self._counts = self._counts, {}
        if not taken:
            return
        try:
            await self._store.add_counts(_by_minute(taken))
        except StoreError as problem:
            self._outages.report_failure("cannot add to the counts of queues, retrying later", problem)
            if len(taken) <= MAX_PENDING:
                for key, count in taken.items():
                    self._counts[key] = self._counts.get(key, 0) + count

    async def close(self) -> None:
        """Flush for the last time."""
        if self._timer is not None:
            self._timer.cancel()
        if self._flushing is not None:
            await asyncio.wait((self._flushing,))
        await self.flush()

    def _start_flush(self) -> None:
        self._timer = None
        self._flushing = self._loop.create_task(self.flush(), name="penstock-rates")


def _by_minute(counts: dict[tuple[int, str, str], int]) -> list[MinuteCounts]:
    rows: dict[tuple[int, str], dict[str, int]] = {}
    for (minute, queue, kind), count in counts.items():
        rows.setdefault((minute, queue), {})[kind] = count
    return [MinuteCounts(queue, minute * MINUTE_MS, **found) for (minute, queue), found in rows.items()]
