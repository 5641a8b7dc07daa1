"""The backlog of pg-boss: waiting jobs and schedules, for an import."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from ...core.retry import Backoff, RetryPolicy
from ...stores.postgres.connection import Connection
from .schema import Statements

NO_CAP_MS = 2**31 * 1000


class WaitingJob(msgspec.Struct, frozen=True):
    """A job that pg-boss has not started, or will retry."""

    id: str
    queue: str
    data: str | None
    priority: int  # higher first
    due: int  # milliseconds since the epoch
    is_delayed: bool  # due in the future
    attempts_left: int
    retry_delay: int  # seconds
    retry_backoff: bool
    retry_delay_max: int | None

    @property
    def retry(self) -> RetryPolicy:
        """Return the retry policy with the same attempts and delays."""
        delay = max(self.retry_delay, 1) if self.retry_backoff else self.retry_delay
        cap_ms = self.retry_delay_max * 1000 if self.retry_delay_max is not None else NO_CAP_MS
        kind: Any = "exponential" if self.retry_backoff else "fixed"
        return RetryPolicy(max(self.attempts_left, 1), Backoff(kind, delay * 1000, cap_ms, self.retry_backoff))


class CronSchedule(msgspec.Struct, frozen=True):
    """A schedule of pg-boss."""

    queue: str
    key: str
    cron: str
    tz: str
    data: str | None
    kind: str = "cron"


class Backlog:
    """Reads the backlog of a pg-boss schema and deletes what was moved."""

    def __init__(self, sql: Statements, queues: Sequence[str] | None) -> None:
        self._sql = sql
        self._queues = list(queues) if queues else None

    async def jobs(self, connection: Connection) -> list[WaitingJob]:
        """Return all waiting jobs, without locking them."""
        async with connection.transaction(readonly=True):
            return [_read_job(row) async for row in connection.cursor(self._sql.backlog, self._queues)]

    async def lock(self, connection: Connection, skip: Iterable[str], limit: int) -> list[WaitingJob]:
        """Lock and return the next jobs, except those to `skip`, until the transaction ends."""
        rows = await connection.fetch(self._sql.lock_backlog, self._queues, [UUID(id) for id in skip], limit)
        return [_read_job(row) for row in rows]

    async def delete(self, connection: Connection, jobs: Sequence[WaitingJob]) -> None:
        """Delete jobs that were moved."""
        ids = [UUID(job.id) for job in jobs]
        await connection.execute(self._sql.delete_jobs, [job.queue for job in jobs], ids)

    async def schedules(self, connection: Connection) -> list[CronSchedule]:
        return [CronSchedule(*row) for row in await connection.fetch(self._sql.schedules, self._queues)]

    async def delete_schedule(self, connection: Connection, schedule: CronSchedule) -> None:
        await connection.execute(self._sql.delete_schedule, schedule.queue, schedule.key)


def _read_job(row: Any) -> WaitingJob:
    id, *rest = row
    return WaitingJob(str(id), *rest)
