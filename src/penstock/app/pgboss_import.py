"""Moving what waits in a pg-boss over to an App: jobs and cron schedules, each once.

A page of jobs is locked in pg-boss, added here under the same ids, and removed there. In one database that is one
transaction. In two, a crash between the last two steps leaves jobs in both places: they are still waiting there, and
the next import, which adds no id twice, removes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from ..commit.committer import CommitRequest
from ..commit.sink import BridgeSink, CommandSink
from ..core.errors import PenstockError, StoreError
from ..core.ids import check_schedule_id
from ..core.payload import parse_json
from ..core.priority import MAX_PRIORITY
from ..jobs.engine import JobOptions
from ..messaging.pgboss.backlog import CronSchedule, Leaving, WaitingJob
from ..messaging.pgboss.bridge import place_of, shared_store
from ..messaging.pgboss.schema import Statements, check
from ..ports.bridge import WriteUnits
from ..ports.unit import NewJob, Unit
from ..schedules.spec import BadSchedule, Target, make_spec
from ..stores.postgres.address import read_address
from ..stores.postgres.connection import Connection, Connections
from .app import App

PAGE = 200


class Left(msgspec.Struct, frozen=True):
    """What cannot be moved, and stays where it is."""

    queue: str
    id: str  # of the job, or the schedule's key
    why: str


class Page(msgspec.Struct, frozen=True):
    """Some jobs, those that were moved and those that were not."""

    jobs: list[WaitingJob]
    left: list[Left]


class Moved(msgspec.Struct):
    """What was moved, or would be."""

    jobs: dict[str, int] = {}  # how many, by the queue they come from
    delayed: int = 0  # of those
    schedules: list[str] = []  # by their ids here
    left: list[Left] = []

    def add(self, page: Page) -> None:
        for job in page.jobs:
            self.jobs[job.queue] = self.jobs.get(job.queue, 0) + 1
            self.delayed += job.later
        self.left += page.left


class PgBossImport:
    """`look` says what there is to move, `move` moves it: of all queues or of some, under other names if given."""

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
        self._leaving = Leaving(self._sql, queues)
        self._rename = dict(rename or {})
        self._connections = Connections(self._address)

    async def look(self) -> Moved:
        """What `move` would move; nothing is changed."""
        return await self._checked(self._look)

    async def move(self, heard: Callable[[int], None] = lambda _: None) -> Moved:
        """Moves all there is; `heard` is told how many after each page. One that was cut off is begun again."""
        return await self._checked(lambda: self._move(heard))

    async def _checked(self, work: Callable[[], Awaitable[Moved]]) -> Moved:
        try:
            await self._connections.run(lambda c: check(c, self._sql, place_of(self._address)))
            return await work()
        finally:
            await self._connections.close()

    async def _look(self) -> Moved:
        moved = Moved()
        jobs = await self._connections.run(self._leaving.jobs)
        moved.add(Page(*self._sorted(jobs)[::2]))
        for schedule in await self._connections.run(self._leaving.schedules):
            await self._schedule(schedule, moved, keep=True)
        return moved

    async def _move(self, heard: Callable[[int], None]) -> Moved:
        moved, shared = Moved(), shared_store(self._app.store, self._address)
        while True:
            but = [one.id for one in moved.left]
            if shared is not None:
                page = await shared.in_transaction(lambda c, write, but=but: self._together(c, write, but))  # type: ignore[misc]
            else:
                page = await self._connections.run(lambda c, but=but: self._apart(c, but))  # type: ignore[misc]
            if not page.jobs and not page.left:
                break
            moved.add(page)
            heard(len(page.jobs))
        for schedule in await self._connections.run(self._leaving.schedules):
            await self._schedule(schedule, moved)
        return moved

    async def _together(self, connection: Connection, write: WriteUnits, but: list[str]) -> Page:
        return await self._page(connection, but, BridgeSink(write))

    async def _apart(self, connection: Connection, but: list[str]) -> Page:
        async with connection.transaction():
            return await self._page(connection, but, self._app._committer)

    async def _page(self, connection: Connection, but: list[str], sink: CommandSink) -> Page:
        jobs, made, left = self._sorted(await self._leaving.lock(connection, but, PAGE))
        if made:
            unit = Unit(self._app._runtime.new_unit_id(), jobs=made)
            await sink.submit(CommitRequest(lambda _v, _r: unit))
            await self._leaving.forget(connection, jobs)
        return Page(jobs, left)

    def _sorted(self, jobs: Sequence[WaitingJob]) -> tuple[list[WaitingJob], list[NewJob], list[Left]]:
        """Those that can be moved, as jobs of ours, and those that cannot."""
        good: list[WaitingJob] = []
        made: list[NewJob] = []
        left: list[Left] = []
        for job in jobs:
            try:
                made.append(self._made(job))
                good.append(job)
            except PenstockError as problem:
                left.append(Left(job.queue, job.id, str(problem)))
        return good, made, left

    def _made(self, job: WaitingJob) -> NewJob:
        """Among those that are due, priorities above 0 are kept by the order they are moved in: ours has none before
        the default."""
        data = parse_json(job.data, "its data") if job.data is not None else None
        return self._app._transactions.direct.jobs.build(
            self._rename.get(job.queue, job.queue),
            data,
            JobOptions(retry=job.retry),
            key=job.id,
            delay_ms=max(job.due - self._app.clock.now_ms(), 0) if job.later else 0,
            priority=min(max(-job.priority, 0), MAX_PRIORITY),
        )

    async def _schedule(self, schedule: CronSchedule, moved: Moved, *, keep: bool = False) -> None:
        """Here first, then gone there: fired twice at worst, never not at all."""
        queue = self._rename.get(schedule.queue, schedule.queue)
        try:
            id = check_schedule_id(f"{queue}.{schedule.key}" if schedule.key else queue)
            if schedule.kind != "cron":
                raise BadSchedule(f"its kind is {schedule.kind!r}, and only cron expressions can be moved: add it anew")
            spec = make_spec(cron=schedule.cron, tz=schedule.tz)
            payload = parse_json(schedule.data, "its data") if schedule.data is not None else None
            if not keep:
                await self._app._schedule_service.upsert(id, spec, Target(queue=queue, input=payload))
                await self._connections.run(lambda c: self._leaving.forget_schedule(c, schedule))
            moved.schedules.append(id)
        except StoreError:
            raise
        except PenstockError as problem:
            moved.left.append(Left(schedule.queue, schedule.key, str(problem)))
