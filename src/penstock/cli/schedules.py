"""`penstock schedules list|add|remove|pause|resume|run-now`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import App as Commands
from cyclopts import Parameter

from ..core.clock import SystemClock, to_iso
from ..core.durations import format_ms
from ..core.errors import UnknownSchedule
from ..ports.store import ScheduleRow
from ..schedules.spec import CatchUp, Overlap, ScheduleSpec, spec_of, target_of
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
    target = {"flow": flow, "queue": queue, "name": name, "payload": read_input(input), "priority": priority}
    row = asyncio.run(_add(common, id, when, target))
    about = schedule_object(row)
    if when.at is not None and row.next is not None and row.next < SystemClock().now_ms():
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


def schedule_object(row: ScheduleRow) -> dict[str, Any]:
    """The object `schedules --json` prints."""
    spec, target = spec_of(row), target_of(row)
    return {
        "id": row.id,
        "starts": f"flow {target.flow}" if target.flow is not None else f"job of {target.queue}",
        "when": _when(spec),
        "next": to_iso(row.next) if row.next is not None else None,
        "last": to_iso(row.last) if row.last is not None else None,
        "fired": row.fired,
        "paused": row.paused,
        "overlap": spec.overlap,
        "catchUp": spec.catch_up,
        "limit": spec.limit,
        "start": to_iso(spec.start_ms) if spec.start_ms is not None else None,
        "end": to_iso(spec.end_ms) if spec.end_ms is not None else None,
        "origin": spec.origin,
        "input": target.payload,
    }


def _when(spec: ScheduleSpec) -> str:
    if spec.every_ms is not None:
        return f"every {format_ms(spec.every_ms)}"
    if spec.at_ms is not None:
        return f"once at {to_iso(spec.at_ms)}"
    return f"{spec.cron} {spec.tz}"


async def _list(common: Common) -> list[ScheduleRow]:
    async with looking_app(common) as app:
        return await app.schedules()


async def _add(common: Common, id: str, when: When, target: dict[str, Any]) -> ScheduleRow:
    check_kept(common)
    every = read_delay(when.every, "--every")
    moments = {name: _moment(getattr(when, name), f"--{name}") for name in ("at", "start", "end")}
    times: dict[str, Any] = {"every": every, "cron": when.cron, "tz": when.tz, **moments}
    async with working_app(common) as app:
        return await app.schedule(id, **target, **times, limit=when.limit, overlap=when.overlap, catch_up=when.catch_up)


def _moment(text: str | None, option: str) -> datetime | None:
    moment = read_moment(text, option)
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


async def _pause(common: Common, id: str) -> ScheduleRow:
    async with looking_app(common) as app:
        return await app.pause_schedule(id)


async def _resume(common: Common, id: str) -> ScheduleRow:
    async with looking_app(common) as app:
        return await app.resume_schedule(id)


async def _run_now(common: Common, id: str) -> str:
    async with acting_app(common) as app:
        return await app.run_schedule(id)


async def _remove(common: Common, id: str) -> None:
    async with looking_app(common) as app:
        if not await app.unschedule(id):
            raise UnknownSchedule(f"there is no schedule {id!r}: `penstock schedules` lists them")
