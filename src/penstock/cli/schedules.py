"""`penstock schedules list|add|remove`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from ..core.clock import iso
from ..core.durations import show_ms
from ..core.errors import UnknownSchedule
from ..jobs.scheduler import ScheduleSpec, Target
from ..ports.store import ScheduleRow
from .confirm import NOT_DONE, Yes, confirmed
from .given import read_delay, read_input, read_moment
from .listing import done, show_list
from .options import USUAL_PLACE, Common
from .session import looking_app, working_app

schedules = Commands(name="schedules", help="List schedules; add and remove them. Workers fire them.")
_SHOWN = ("id", "starts", "when", "next", "last", "fired")


@Parameter(name="*")
@dataclass(frozen=True)
class When:
    """When a schedule fires: one of the three."""

    every: Annotated[str | None, Parameter(help="So often: 30s, 5m, 1d.")] = None
    cron: Annotated[str | None, Parameter(help="By a cron expression, such as '0 9 * * 1-5'.")] = None
    at: Annotated[str | None, Parameter(help="Once, at a time such as 2030-01-31T09:00:00+01:00.")] = None
    tz: Annotated[str, Parameter(help="The time zone of --cron.")] = "UTC"


_NEVER = When()


@schedules.command(name="list")
@schedules.default
def list_schedules(*, common: Common = USUAL_PLACE) -> int:
    """List schedules."""
    rows = [schedule_object(row) for row in asyncio.run(_list(common))]
    show_list(rows, _SHOWN, json=common.json, none="No schedules.")
    return 0


@schedules.command
def add(
    id: str,
    /,
    *,
    flow: Annotated[str | None, Parameter(help="Start this flow.")] = None,
    queue: Annotated[str | None, Parameter(help="Or add a job to this queue.")] = None,
    name: Annotated[str | None, Parameter(help="The job's name.")] = None,
    input: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="What it is given: JSON, @FILE, -.")] = None,
    priority: Annotated[int, Parameter(help="Lower goes first.")] = 0,
    when: When = _NEVER,
    common: Common = USUAL_PLACE,
) -> int:
    """Add a schedule that starts a flow or adds a job; one of the same id is replaced.

    Parameters
    ----------
    id
        The schedule's id.
    """
    target = {"flow": flow, "queue": queue, "name": name, "payload": read_input(input), "priority": priority}
    row = asyncio.run(_add(common, id, when, target))
    about = schedule_object(row)
    done(f"Schedule {id} fires {about['when']}, next at {about['next']}.", about, json=common.json)
    return 0


@schedules.command
def remove(id: str, /, *, yes: Yes = False, common: Common = USUAL_PLACE) -> int:
    """Remove a schedule.

    Parameters
    ----------
    id
        The schedule's id.
    """
    if not confirmed(f"Remove schedule {id}?", yes):
        return NOT_DONE
    asyncio.run(_remove(common, id))
    done(f"Schedule {id} is gone.", {"id": id, "removed": True}, json=common.json)
    return 0


def schedule_object(row: ScheduleRow) -> dict[str, Any]:
    """The object `schedules --json` prints."""
    spec = msgspec.json.decode(row.spec, type=ScheduleSpec)
    target = msgspec.json.decode(row.target, type=Target)
    return {
        "id": row.id,
        "starts": f"flow {target.flow}" if target.flow is not None else f"job of {target.queue}",
        "when": _when(spec),
        "next": iso(row.next) if row.next is not None else None,
        "last": iso(row.last) if row.last is not None else None,
        "fired": row.fired,
        "paused": row.paused,
        "input": target.payload,
    }


def _when(spec: ScheduleSpec) -> str:
    if spec.every_ms is not None:
        return f"every {show_ms(spec.every_ms)}"
    if spec.at_ms is not None:
        return f"once at {iso(spec.at_ms)}"
    return f"{spec.cron} {spec.tz}"


async def _list(common: Common) -> list[ScheduleRow]:
    async with looking_app(common) as app:
        return await app.schedules()


async def _add(common: Common, id: str, when: When, target: dict[str, Any]) -> ScheduleRow:
    every, at = read_delay(when.every, "--every"), read_moment(when.at)
    async with working_app(common) as app:
        return await app.schedule(id, **target, every=every, cron=when.cron, tz=when.tz, at=at)


async def _remove(common: Common, id: str) -> None:
    async with looking_app(common) as app:
        if not await app.unschedule(id):
            raise UnknownSchedule(f"there is no schedule {id!r}: `penstock schedules` lists them")
