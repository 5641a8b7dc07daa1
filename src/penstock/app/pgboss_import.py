"""Import waiting jobs and cron schedules from pg-boss, each once.

An import locks a page of jobs in pg-boss, adds them to the store under the same ids, and deletes them in pg-boss. In
one database that is one transaction. In two, a crash between the last two steps leaves jobs in both. The next import
adds no id twice, and deletes them in pg-boss.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec

from ..commit.command_sink import BridgeSink, CommandSink
from ..commit.committer import CommitRequest
from ..core.errors import BadArgument, PenstockError, StoreError
from ..core.ids import check_schedule_id
from ..core.options import MAX_PRIORITY
from ..core.payload import parse_json
from ..jobs.engine import JobOptions
from ..messaging.pgboss.backlog import Backlog, CronSchedule, WaitingJob
from ..messaging.pgboss.bridge import database_of, shared_store
from ..messaging.pgboss.schema import Statements, check_schema
from ..ports.bridge import WriteUnits
from ..ports.unit import NewJob, Unit
from ..schedules.spec import BadSchedule, Target, make_spec
from ..stores.postgres.address import read_address
from ..stores.postgres.connection import Connection, Connections
from .app import App


class SkippedItem(msgspec.Struct, frozen=True):
    """A job or schedule that cannot be imported and stays in pg-boss."""

    queue: str
    id: str  # of the job, or the schedule's key
    reason: str


class Page(msgspec.Struct, frozen=True):
    """A page of jobs: those that were moved, and those that were skipped."""

    jobs: list[WaitingJob]
    skipped: list[SkippedItem]


class ImportReport(msgspec.Struct):
    """Counts what an import moved, or would move."""

    jobs: dict[str, int] = {}  # how many, by the queue they come from
    delayed: int = 0  # of those
    schedules: list[str] = []  # by their ids here
    skipped: list[SkippedItem] = []

    def add(self, page: Page) -> None:
        for job in page.jobs:
            self.jobs[job.queue] = self.jobs.get(job.queue, 0) + 1
            self.delayed += job.is_delayed
        self.skipped += page.skipped


class PgBossImport:
    """Imports the backlog of all queues or of some, which `rename` maps to other names."""

    def __init__(
        self,
        app: App,
        url: str,
        *,
        schema: str = "pgboss",
        queues: Sequence[str] | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        self._app = app
        self._address = read_address(url)
        self._sql = Statements(schema)
        self._backlog = Backlog(self._sql, queues)
        self._rename = dict(rename or {})
        self._connections = Connections(self._address)
        self._shared_ids: set[str] = set()

    async def preview(self) -> ImportReport:
        """Return what `move` would move. Nothing is changed."""
        return await self._run(self._preview)

    async def move(self, on_page: Callable[[int], None] = lambda _: None) -> ImportReport:
        """Move everything, and call `on_page` with the number of jobs after each page. It is safe to repeat."""
        return await self._run(lambda: self._move(on_page))

    async def _run(self, work: Callable[[], Awaitable[ImportReport]]) -> ImportReport:
        try:
            await self._connections.run(lambda c: check_schema(c, self._sql, database_of(self._address)))
            return await work()
        finally:
            await self._connections.close()

    async def _preview(self) -> ImportReport:
        self._shared_ids = await self._connections.run(self._backlog.shared_ids)

        async def count(connection: Connection) -> ImportReport:
            found = ImportReport()
            await self._backlog.read(connection, lambda jobs: found.add(Page(*self._convert(jobs)[::2])))
            return found

        report = await self._connections.run(count)
        for schedule in await self._connections.run(self._backlog.schedules):
            await self._schedule(schedule, report, keep=True)
        return report

    async def _move(self, on_page: Callable[[int], None]) -> ImportReport:
        report, shared = ImportReport(), shared_store(self._app.store, self._address)
        self._shared_ids = await self._connections.run(self._backlog.shared_ids)
        while True:
            skip = [one.id for one in report.skipped]
            if shared is not None:
                page = await shared.in_transaction(partial(self._move_in_transaction, skip))
            else:
                page = await self._connections.run(partial(self._move_between_databases, skip))
            if not page.jobs and not page.skipped:
                break
            report.add(page)
            on_page(len(page.jobs))
        for schedule in await self._connections.run(self._backlog.schedules):
            await self._schedule(schedule, report)
        return report

    async def _move_in_transaction(self, skip: list[str], connection: Connection, write: WriteUnits) -> Page:
        return await self._move_page(connection, skip, BridgeSink(write))

    async def _move_between_databases(self, skip: list[str], connection: Connection) -> Page:
        async with connection.transaction():
            return await self._move_page(connection, skip, self._app._committer)

    async def _move_page(self, connection: Connection, skip: list[str], sink: CommandSink) -> Page:
        jobs, new, left = self._convert(await self._backlog.lock(connection, skip))
        if new:
            unit = Unit(self._app._runtime.new_unit_id(), jobs=new)
            await sink.submit(CommitRequest(lambda _v, _r: unit))
            await self._backlog.delete(connection, jobs)
        return Page(jobs, left)

    def _convert(self, jobs: Sequence[WaitingJob]) -> tuple[list[WaitingJob], list[NewJob], list[SkippedItem]]:
        """Return the jobs that can be moved, the same as new jobs, and those that are skipped."""
        movable: list[WaitingJob] = []
        new: list[NewJob] = []
        left: list[SkippedItem] = []
        for job in jobs:
            try:
                new.append(self._new_job(job))
                movable.append(job)
            except PenstockError as problem:
                left.append(SkippedItem(job.queue, job.id, str(problem)))
        return movable, new, left

    def _new_job(self, job: WaitingJob) -> NewJob:
        """Convert a job. Priorities above 0 only order the jobs that are moved: here, 0 is the highest."""
        if job.id in self._shared_ids:
            raise BadArgument(
                "jobs of several queues have this id, which must be unique here; delete or finish the others"
            )
        return self._app._transactions.direct.jobs.build(
            self._rename.get(job.queue, job.queue),
            job.read_data(),
            JobOptions(retry=job.retry),
            key=job.id,
            due=job.read_due(),
            priority=min(max(-job.priority, 0), MAX_PRIORITY),
        )

    async def _schedule(self, schedule: CronSchedule, report: ImportReport, *, keep: bool = False) -> None:
        """Add a schedule here, then delete it in pg-boss: at worst it fires twice, never not at all."""
        queue = self._rename.get(schedule.queue, schedule.queue)
        try:
            id = check_schedule_id(f"{queue}.{schedule.key}" if schedule.key else queue)
            if schedule.kind != "cron":
                raise BadSchedule(
                    f"its kind is {schedule.kind!r}, and only cron schedules can be copied from pg-boss; add it by hand"
                )
            spec = make_spec(cron=schedule.cron, tz=schedule.tz)
            payload = parse_json(schedule.data, "its data") if schedule.data is not None else None
            if not keep:
                await self._app._schedule_service.upsert(id, spec, Target(queue=queue, input=payload))
                await self._connections.run(lambda c: self._backlog.delete_schedule(c, schedule))
            report.schedules.append(id)
        except StoreError:
            raise
        except PenstockError as problem:
            report.skipped.append(SkippedItem(schedule.queue, schedule.key, str(problem)))
