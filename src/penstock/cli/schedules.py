"""`penstock schedules list|add|remove|pause|resume|run-now`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import App as Commands
from cyclopts import Parameter

from ..app.views import ScheduleView
from ..core.clock import SystemClock, from_iso
from ..core.durations import show_ms
from ..core.errors import UnknownSchedule
from ..schedules.spec import CatchUp, Overlap
from .confirm import NOT_DONE, Yes, confirmed
from .errors import warn
from .options import USUAL_PLACE, Common
from .parse import read_delay, read_input, read_moment
from .secrets import Reveal, Veil
from .session import acting_app, check_kept, looking_app, working_app
from .tables import done, show_list

schedules = Commands(name="schedules", help="List schedules; add, pause, resume and remove them. Workers fire them.")
_SHOWN = ("id", "starts", "when", "next", "last", "fired", "paused", "overlap")


@Parameter(name="*")
@dataclass(frozen=True)
class When:
    """When a schedule fires: one of the first three."""

    every: Annotated[str | None, Parameter(help="So often: 30s, 5m, 1d.")] = None
    cron: Annotated[str | None, Parameter(help="By a cron expression, such as '0 9 * * 1-5'.")] = None
    at: Annotated[str | None, Parameter(help="Once, at a time such as 2030-01-31T09:00:00+01:00.")] = None
    tz: Annotated[str, Parameter(help="The time zone of --cron.")] = "UTC"
    start: Annotated[str | None, Parameter(help="No slot before this time.")] = None
    end: Annotated[str | None, Parameter(help="No slot after this time.")] = None
    limit: Annotated[int | None, Parameter(help="Fire so often at most.")] = None
    overlap: Annotated[
        Overlap,
        Parameter(help="While the last run goes on: start another, skip the slot, let it wait, or replace the run."),
    ] = "allow"
    catch_up: Annotated[CatchUp, Parameter(help="Of slots missed while nothing ran, fire one, all or none.")] = "one"


_NEVER = When()


@schedules.command(name="list")
@schedules.default
def list_schedules(*, reveal: Reveal = False, common: Common = USUAL_PLACE) -> int:
    """List schedules."""
    veil = Veil(common, reveal)
    rows = [veil.over(schedule_object(row), "input") for row in asyncio.run(_list(common))]
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
    priority: Annotated[int | None, Parameter(help="Lower goes first.")] = None,
    when: When = _NEVER,
    common: Common = USUAL_PLACE,
) -> int:
    """Add a schedule that starts a flow or adds a job; one of the same id is replaced.

    Parameters
    ----------
    id
        The schedule's id.
    """
    target = {"flow": flow, "queue": queue, "name": name, "input": read_input(input), "priority": priority}
    row = asyncio.run(_add(common, id, when, target))
    about = schedule_object(row)
    if when.at is not None and row.next_at is not None and from_iso(row.next_at) < SystemClock().now_ms():
        warn(f"--at {when.at} is past: it fires as soon as a worker runs.")
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


@schedules.command
def pause(id: str, /, *, common: Common = USUAL_PLACE) -> int:
    """Let a schedule fire no more until it is resumed.

    Parameters
    ----------
    id
        The schedule's id.
    """
    row = asyncio.run(_pause(common, id))
    done(f"Schedule {id} is paused.", schedule_object(row), json=common.json)
    return 0


@schedules.command
def resume(id: str, /, *, common: Common = USUAL_PLACE) -> int:
    """Let a paused schedule go on with its next slot.

    Parameters
    ----------
    id
        The schedule's id.
    """
    row = asyncio.run(_resume(common, id))
    about = schedule_object(row)
    done(f"Schedule {id} goes on, next at {about['next']}.", about, json=common.json)
    return 0


@schedules.command(name="run-now")
def run_now(id: str, /, *, common: Common = USUAL_PLACE) -> int:
    """Start what a schedule is for now, besides its slots.

    Parameters
    ----------
    id
        The schedule's id.
    """
    started = asyncio.run(_run_now(common, id))
    done(f"Started {started}.", {"id": id, "started": started}, json=common.json)
    return 0


def schedule_object(row: ScheduleView) -> dict[str, Any]:
    """The object `schedules --json` prints."""
    return {
        "id": row.id,
        "starts": f"flow {row.flow}" if row.flow is not None else f"job of {row.queue}",
        "when": _when(row),
        "next": row.next_at,
        "last": row.last_at,
        "fired": row.fired,
        "paused": row.paused,
        "overlap": row.overlap,
        "catchUp": row.catch_up,
        "limit": row.limit,
        "start": row.start,
        "end": row.end,
        "origin": row.origin,
        "input": row.input,
    }


def _when(row: ScheduleView) -> str:
    if row.every_ms is not None:
        return f"every {show_ms(row.every_ms)}"
    if row.at is not None:
        return f"once at {row.at}"
    return f"{row.cron} {row.tz}"


async def _list(common: Common) -> list[ScheduleView]:
    async with looking_app(common) as app:
        return await app.schedules.list()


async def _add(common: Common, id: str, when: When, target: dict[str, Any]) -> ScheduleView:
    check_kept(common)
    every = read_delay(when.every, "--every")
    moments = {name: _moment(getattr(when, name), f"--{name}") for name in ("at", "start", "end")}
    times: dict[str, Any] = {"every": every, "cron": when.cron, "tz": when.tz, **moments}
    async with working_app(common) as app:
        return await app.schedules.add(
            id, **target, **times, limit=when.limit, overlap=when.overlap, catch_up=when.catch_up
        )


def _moment(text: str | None, option: str) -> datetime | None:
    moment = read_moment(text, option)
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


async def _pause(common: Common, id: str) -> ScheduleView:
    async with looking_app(common) as app:
        return await app.schedules.pause(id)


async def _resume(common: Common, id: str) -> ScheduleView:
    async with looking_app(common) as app:
        return await app.schedules.resume(id)


async def _run_now(common: Common, id: str) -> str:
    async with acting_app(common) as app:
        return await app.schedules.run_now(id)


async def _remove(common: Common, id: str) -> None:
    async with looking_app(common) as app:
        if not await app.schedules.remove(id):
            raise UnknownSchedule(f"there is no schedule {id!r}: `penstock schedules` lists them")
