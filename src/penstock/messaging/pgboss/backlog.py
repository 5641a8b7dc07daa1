"""What waits in pg-boss, to be moved elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from ...core.retry import Backoff, RetryPolicy
from ...stores.postgres.connection import Connection
from .schema import Statements

FAR = 2**31 * 1000  # milliseconds: no cap


class WaitingJob(msgspec.Struct, frozen=True):
    """A job that pg-boss has not begun, or is to try again."""

    id: str
    queue: str
    data: str | None
    priority: int  # higher first
    due: int  # milliseconds
    later: bool  # whether that is still to come
    tries: int  # how many it has left
    retry_delay: int  # seconds
    retry_backoff: bool
    retry_delay_max: int | None

    @property
    def retry(self) -> RetryPolicy:
        """The same tries with the same pauses, in our words."""
        delay = max(self.retry_delay, 1) if self.retry_backoff else self.retry_delay
        most = self.retry_delay_max * 1000 if self.retry_delay_max is not None else FAR
        kind: Any = "exponential" if self.retry_backoff else "fixed"
        return RetryPolicy(max(self.tries, 1), Backoff(kind, delay * 1000, most, self.retry_backoff))


class CronSchedule(msgspec.Struct, frozen=True):
    """A schedule of pg-boss."""

    queue: str
    key: str
    cron: str
    tz: str
    data: str | None
    kind: str = "cron"


class Leaving:
    """Reads what waits in a pg-boss schema and removes what was moved."""

    def __init__(self, sql: Statements, queues: Sequence[str] | None) -> None:
        self._sql = sql
        self._only = list(queues) if queues else None

    async def jobs(self, connection: Connection) -> list[WaitingJob]:
        """All there are, only looked at."""
        async with connection.transaction(readonly=True):
            return [_job(row) async for row in connection.cursor(self._sql.open_jobs, self._only)]

    async def lock(self, connection: Connection, but: Iterable[str], limit: int) -> list[WaitingJob]:
        """The next ones, ours until the transaction ends."""
        rows = await connection.fetch(self._sql.lock_jobs, self._only, [UUID(id) for id in but], limit)
        return [_job(row) for row in rows]

    async def forget(self, connection: Connection, jobs: Sequence[WaitingJob]) -> None:
        ids = [UUID(job.id) for job in jobs]
        await connection.execute(self._sql.forget_jobs, [job.queue for job in jobs], ids)

    async def schedules(self, connection: Connection) -> list[CronSchedule]:
        return [CronSchedule(*row) for row in await connection.fetch(self._sql.schedules, self._only)]

    async def forget_schedule(self, connection: Connection, schedule: CronSchedule) -> None:
        await connection.execute(self._sql.forget_schedule, schedule.queue, schedule.key)


def _job(row: Any) -> WaitingJob:
    id, *rest = row
    return WaitingJob(str(id), *rest)
