"""The backlog of pg-boss: waiting jobs and schedules, for an import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from ...core.clock import MAX_TIME_MS
from ...core.durations import MAX_DURATION_MS
from ...core.errors import BadArgument
from ...core.payload import MAX_PAYLOAD_BYTES
from ...core.retry import Backoff, RetryPolicy
from ...stores.postgres.connection import Connection
from .queues import read_data
from .schema import Statements

PAGE_JOBS = 200


class WaitingJob(msgspec.Struct, frozen=True):
    """A job that pg-boss has not started, or will retry."""

    id: str
    queue: str
    data: str | None  # also None if it is too large
    size: int  # of the data, in bytes
    priority: int  # higher first
    due: int | None  # milliseconds since the epoch; None for an infinite date
    is_delayed: bool  # due in the future
    attempts_left: int
    retry_delay: int  # seconds
    retry_backoff: bool
    retry_delay_max: int | None

    @property
    def retry(self) -> RetryPolicy:
        """Return the retry policy with the same attempts and delays, a negative delay as none."""
        delay = max(self.retry_delay, 1 if self.retry_backoff else 0)
        cap_ms = max(self.retry_delay_max, 0) * 1000 if self.retry_delay_max is not None else MAX_DURATION_MS
        kind: Any = "exponential" if self.retry_backoff else "fixed"
        return RetryPolicy(max(self.attempts_left, 1), Backoff(kind, delay * 1000, cap_ms, self.retry_backoff))

    def read_data(self) -> Any:
        """Return its data, or raise PayloadError."""
        return read_data(self.data, self.size, "its data")

    def read_due(self) -> int:
        """Return when it is due, 0 for now. Raise BadArgument for a date that nothing here can show."""
        if not self.is_delayed:
            return 0
        if self.due is None or self.due > MAX_TIME_MS:
            raise BadArgument("its start_after must be a date before the year 10000; change it in pg-boss")
        return self.due


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

    async def read(self, connection: Connection, take: Callable[[list[WaitingJob]], None]) -> None:
        """Call `take` with each page of waiting jobs, without locking them."""
        async with connection.transaction(readonly=True):
            cursor = await connection.cursor(self._sql.backlog, self._queues, MAX_PAYLOAD_BYTES)
            while rows := await cursor.fetch(PAGE_JOBS):
                take([_read_job(row) for row in rows])

    async def lock(self, connection: Connection, skip: Iterable[str]) -> list[WaitingJob]:
        """Lock and return the next page of jobs, except those to `skip`, until the transaction ends."""
        values = (self._queues, [UUID(id) for id in skip], PAGE_JOBS, MAX_PAYLOAD_BYTES)
        return [_read_job(row) for row in await connection.fetch(self._sql.lock_backlog, *values)]

    async def shared_ids(self, connection: Connection) -> set[str]:
        """Return the ids that waiting jobs of several queues have."""
        return {str(row[0]) for row in await connection.fetch(self._sql.shared_ids)}

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
