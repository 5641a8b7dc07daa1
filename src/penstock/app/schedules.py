"""`app.schedules`: start flows and enqueue jobs by interval, by cron or once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..core.argument_checks import check_arguments, check_count
from ..core.clock import to_iso
from ..core.durations import Duration
from ..core.errors import BadArgument
from ..core.ids import check_name
from ..core.options import check_key, check_priority
from ..handlers.registry import find_flow
from ..ports.store import ForeignSchedule, ForeignSchedules
from ..schedules.spec import CODE_ORIGIN, CatchUp, Overlap, Target, make_spec, next_slots
from .schedule_service import ScheduleService
from .views import ScheduleView, foreign_schedule_view, schedule_view

if TYPE_CHECKING:
    from .app import App


MAX_SLOTS = 1_000


@check_arguments
class Schedules:
    """Schedules of this App. Workers fire them."""

    def __init__(self, app: App, service: ScheduleService) -> None:
        self._app = app
        self._service = service

    async def add(
        self,
        id: str,
        *,
        flow: str | Callable[..., Any] | None = None,
        queue: str | None = None,
        name: str | None = None,
        input: Any = None,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str = "UTC",
        at: datetime | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        overlap: Overlap = "allow",
        catch_up: CatchUp = "one",
        priority: int | None = None,
        order_key: str | None = None,
    ) -> ScheduleView:
        """Create or replace a schedule. Give `flow` or `queue`, and one of `every`, `cron` and `at`.

        Args:
            id: Name of the schedule.
            flow: The flow to start: its name, or the function marked with `@flow`.
            queue: The queue to enqueue a job to.
            name: Name of the job, if several handlers share the queue.
            input: What the flow or the job receives.
            every: Interval such as "15m", at least "1s".
            cron: Cron expression with five fields, such as "0 9 * * 1-5".
            tz: Time zone of the cron expression.
            at: Fire once at this datetime.
            start: No slot before this datetime.
            end: No slot after this datetime.
            limit: Maximum number of slots that fire.
            overlap: If the last slot's work is still open: "allow", "skip" the slot, "queue" it, or "replace" the work.
            catch_up: Slots missed while no worker ran: fire "one", "all" or "none" of them.
            priority: Of what it starts; lower runs first.
            order_key: Of the jobs it enqueues; see `app.jobs.enqueue`.
        """
        target = Target(
            find_flow(self._app.registry, flow).name if flow is not None else None,
            check_name(queue, "queue name") if queue is not None else None,
            name,
            input,
            check_priority(priority) if priority is not None else None,
            check_key(order_key, "order_key") if order_key is not None else None,
        )
        spec = make_spec(
            every=every, cron=cron, tz=tz, at=at, start=start, end=end, limit=limit, overlap=overlap, catch_up=catch_up
        )
        return schedule_view(await self._service.upsert(id, spec, target))

    async def get(self, id: str) -> ScheduleView:
        """Return a schedule. Raise UnknownSchedule if there is none.

        Args:
            id: Name of the schedule.
        """
        return schedule_view(await self._service.get(id))

    async def next_slots(self, id: str, *, count: int = 10) -> Sequence[str]:
        """Return when a schedule fires next, as ISO times. A paused schedule has no next slot.

        Args:
            id: Name of the schedule.
            count: Maximum number of slots, at most 1,000.
        """
        if check_count(count, "count") > MAX_SLOTS:
            raise BadArgument(f"count must be 1 to {MAX_SLOTS:,}, got {count}")
        return [to_iso(slot) for slot in next_slots(await self._service.get(id), count)]

    async def list(self) -> list[ScheduleView]:
        """Return all schedules, by id; on Redis also the job schedulers of other programs, marked as `foreign`."""
        ours = [schedule_view(row) for row in await self._app.store.schedules()]
        theirs = [foreign_schedule_view(row) for row in await self._list_foreign()]
        return [*ours, *sorted(theirs, key=lambda row: (row.id, row.queue or ""))]

    async def _list_foreign(self) -> Sequence[ForeignSchedule]:
        store = self._app.store
        if not isinstance(store, ForeignSchedules):
            return ()
        return await store.foreign_schedules(self._app.registry.queues())

    async def pause(self, id: str) -> ScheduleView:
        """Pause a schedule: it does not fire until `resume`. Runs and jobs it has started continue.

        Args:
            id: Name of the schedule.
        """
        return schedule_view(await self._service.pause(id))

    async def resume(self, id: str) -> ScheduleView:
        """Resume a paused schedule with its next slot. Slots that passed meanwhile do not fire.

        Args:
            id: Name of the schedule.
        """
        return schedule_view(await self._service.resume(id))

    async def remove(self, id: str, *, queue: str | None = None) -> bool:
        """Remove a schedule, or a job scheduler of another program on Redis. Return False if there was none.

        Args:
            id: Name of the schedule.
            queue: Remove the job scheduler of another program in this queue. Default: one of ours, or else the only
                one of that name.
        """
        store = self._app.store
        if queue is None and await store.remove_schedule(id):
            return True
        theirs = [row.queue for row in await self._list_foreign() if row.id == id and queue in (None, row.queue)]
        if len(theirs) > 1:
            raise BadArgument(
                f"{len(theirs)} queues have a job scheduler {id!r} of another program: {', '.join(theirs)}; pass queue="
            )
        return (
            bool(theirs) and isinstance(store, ForeignSchedules) and await store.remove_foreign_schedule(theirs[0], id)
        )

    async def deactivate(self, flow: str | Callable[..., Any]) -> Sequence[str]:
        """Stop all schedules of a flow, and return their ids. Runs they have started continue.

        Those that were added are removed. Those that the code declares are paused, because a worker would add them
        again; `resume` starts them again.

        Args:
            flow: A flow's name, or the function marked with `@flow`.
        """
        name = flow if isinstance(flow, str) else find_flow(self._app.registry, flow).name
        stopped = []
        for view in [schedule_view(row) for row in await self._app.store.schedules()]:
            if view.flow != name:
                continue
            if view.origin == CODE_ORIGIN:
                await self._service.pause(view.id)
            elif not await self._app.store.remove_schedule(view.id):
                continue
            stopped.append(view.id)
        return stopped

    async def run_now(self, id: str) -> str:
        """Start what a schedule starts, now and besides its slots, and return the id of the run or the job.

        Args:
            id: Name of the schedule.
        """
        return await self._service.run_now(id)
