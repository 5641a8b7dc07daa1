"""`client.schedules`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..app.views import ScheduleView
from ..core.argument_checks import check_arguments
from ..core.durations import Duration
from ..schedules.spec import CatchUp, Overlap
from .connection import Connection
from .times import show_duration

SCHEDULE = "/api/_schedules/{}"
Texts = dict[str, list[str]]


@check_arguments
class Schedules:
    """Schedules. Workers fire them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def add(
        self,
        id: str,
        *,
        flow: str | None = None,
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
            flow: The flow to start.
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
            order_key: Of the jobs it enqueues.
        """
        body = {
            "flow": flow,
            "queue": queue,
            "name": name,
            "input": input,
            "every": show_duration(every),
            "cron": cron,
            "tz": tz,
            "at": at,
            "start": start,
            "end": end,
            "limit": limit,
            "overlap": overlap,
            "catchUp": catch_up,
            "priority": priority,
            "orderKey": order_key,
        }
        return await self._connection.request("PUT", ScheduleView, SCHEDULE, id, body=body)

    async def get(self, id: str) -> ScheduleView:
        """Return a schedule.

        Args:
            id: Name of the schedule.
        """
        return await self._connection.get(ScheduleView, SCHEDULE, id)

    async def list(self) -> list[ScheduleView]:
        """Return all schedules, by id."""
        return await self._connection.get(list[ScheduleView], "/api/_schedules")

    async def pause(self, id: str) -> ScheduleView:
        """Pause a schedule: it does not fire until `resume`.

        Args:
            id: Name of the schedule.
        """
        return await self._connection.post(ScheduleView, SCHEDULE + "/pause", id)

    async def resume(self, id: str) -> ScheduleView:
        """Resume a paused schedule with its next slot.

        Args:
            id: Name of the schedule.
        """
        return await self._connection.post(ScheduleView, SCHEDULE + "/resume", id)

    async def remove(self, id: str, *, queue: str | None = None) -> bool:
        """Remove a schedule, or a job scheduler of another program on Redis. Return False if there was none.

        Args:
            id: Name of the schedule.
            queue: Remove the job scheduler of another program in this queue.
        """
        return (await self._connection.delete(dict[str, bool], SCHEDULE, id, queue=queue))["ok"]

    async def next_slots(self, id: str, *, count: int = 10) -> Sequence[str]:
        """Return when a schedule fires next, as ISO times. A paused schedule has no next slot.

        Args:
            id: Name of the schedule.
            count: Maximum number of slots, at most 1,000.
        """
        return (await self._connection.get(Texts, SCHEDULE + "/next", id, count=count))["slots"]

    async def deactivate(self, flow: str) -> Sequence[str]:
        """Stop all schedules of a flow, and return their ids. Runs they have started continue.

        Args:
            flow: The flow's name.
        """
        return (await self._connection.post(Texts, "/api/_flow/{}/schedules/deactivate", flow))["ids"]

    async def run_now(self, id: str) -> str:
        """Start what a schedule starts, now and besides its slots, and return the id of the run or the job.

        Args:
            id: Name of the schedule.
        """
        return await self._connection.post_for_id(SCHEDULE + "/run", id)
