"""Find out that a worker is idle: no claim is in hand, and no job and no slot of a schedule is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from ..core.clock import to_iso
from ..core.errors import StoreError
from ..core.outage_retry import OutageLog
from ..ports.store import Store
from ..ports.unit import JobState
from ..schedules.scheduler import Scheduler
from ..worker.worker import Worker

HELD_BACK_AFTER_POLLS = 20  # due work that is not handed out for this many polls is held back, by a limit or a pause
RETRY_S = 1.0


class IdleReport(msgspec.Struct, frozen=True):
    """How `app.workers.run_until_idle` ended."""

    idle: bool  # False: it was stopped before
    next: str | None = None  # when more work is due, as far as the store knows; None if nothing is planned


class IdleDetector:
    """Waits until one worker, its scheduler and its start-up have nothing left to do."""

    def __init__(
        self, worker: Worker, scheduler: Scheduler, store: Store, lease_ms: int, is_prepared: asyncio.Event
    ) -> None:
        self._worker = worker
        self._scheduler = scheduler
        self._store = store
        self._lease_ms = lease_ms
        self._is_prepared = is_prepared
        self._outages = OutageLog()

    async def wait(self, now: Callable[[], int]) -> IdleReport:
        """Return once nothing is due."""
        await self._is_prepared.wait()
        while True:
            try:
                await self._settle(now)
                due = await self._next_due(now())
            except StoreError as problem:
                self._outages.report_failure("cannot read what is due, retrying", problem)
                await asyncio.sleep(RETRY_S)
            else:
                return IdleReport(True, to_iso(due) if due is not None else None)

    async def _settle(self, now: Callable[[], int]) -> None:
        polls = 0
        while polls < HELD_BACK_AFTER_POLLS:
            await self._scheduler.catch_up()
            await self._worker.wait_idle()
            due = self._worker.next_due
            if await self._scheduler.fire_due():  # a slot came due meanwhile
                polls = 0
            elif due is None or due > now():
                return
            else:
                polls += 1

    async def _next_due(self, now: int) -> int | None:
        """Return when to come back: the next job, slot or expired lease.

        The answer to a claim is no help alone: on Redis it is the time of the next look at what other programs did."""
        moments = [await self._store.next_schedule(now)]
        served = set(self._worker.queues)
        for row in await self._store.queues():
            if row.name not in served or row.paused:
                continue
            if row.counts[JobState.DELAYED] or row.counts[JobState.SUSPENDED]:
                moments += [job.due for job in await self._store.jobs(row.name, JobState.DELAYED, limit=1)]
            if row.counts[JobState.ACTIVE]:
                moments.append(now + self._lease_ms)  # another worker has it, or has died
            if row.counts[JobState.WAITING]:
                moments.append(self._worker.next_due)  # a limit holds it back
        return min((moment for moment in moments if moment is not None), default=None)
