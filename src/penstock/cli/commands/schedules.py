"""`penstock schedules list|add|remove|deactivate|pause|resume|next|run-now`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import App as Commands
from cyclopts import Parameter

from ...app.views import ScheduleView
from ...core.clock import from_iso
from ...core.durations import format_ms
from ...core.errors import UnknownSchedule
from ...schedules.spec import CatchUp, Overlap
from ..errors import EXIT_FAILED, warn
from ..options import COMMON_DEFAULTS, ORDER_KEY_HELP, PRIORITY_HELP, CommonOptions
from ..output import Reveal, SecretFilter, Yes, confirm
from ..parse import read_delay, read_input, read_time
from ..session import build_admin_app, build_store_app, build_worker_app, refuse_memory_store
from ..tables import print_result, print_rows

schedules = Commands(name="schedules", help="List schedules; add, pause, resume, remove or run one. Workers fire them.")
_COLUMNS = ("id", "starts", "when", "next", "last", "fired", "paused", "overlap")


@Parameter(name="*")
@dataclass(frozen=True)
class TimeOptions:
    """When a schedule fires: exactly one of --every, --cron and --at."""

    every: Annotated[str | None, Parameter(help="Interval: 30s, 5m, 1d.")] = None
    cron: Annotated[str | None, Parameter(help="Cron expression, such as '0 9 * * 1-5'.")] = None
    at: Annotated[str | None, Parameter(help="Fire once at this time, such as 2030-01-31T09:00:00+01:00.")] = None
    tz: Annotated[str, Parameter(help="Time zone of --cron.")] = "UTC"
    start: Annotated[str | None, Parameter(help="Do not fire before this time.")] = None
    end: Annotated[str | None, Parameter(help="Do not fire after this time.")] = None
    limit: Annotated[int | None, Parameter(help="Maximum number of times to fire.")] = None
    overlap: Annotated[
        Overlap,
        Parameter(help="If the last run is still open: start another, skip this time, queue it, or replace the run."),
    ] = "allow"
    catch_up: Annotated[
        CatchUp, Parameter(help="For times missed while no worker was running: fire one, all or none.")
    ] = "one"


_NO_TIMES = TimeOptions()


@schedules.command(name="list")
@schedules.default
def list_schedules(*, reveal: Reveal = False, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """List schedules."""
    secrets = SecretFilter(common, reveal)
    rows = [secrets.redact_fields(schedule_to_dict(row), "input") for row in asyncio.run(_list(common))]
    columns = (*_COLUMNS, *(name for name in ("foreign", "unreadable") if any(row[name] for row in rows)))
    print_rows(rows, columns, json=common.json, empty="No schedules.")
    return 0


@schedules.command
def add(
    id: str,
    /,
    *,
    flow: Annotated[str | None, Parameter(help="Flow to start.")] = None,
    queue: Annotated[str | None, Parameter(help="Queue to add a job to, instead of --flow.")] = None,
    name: Annotated[str | None, Parameter(help="Name of the job.")] = None,
    input: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Input: JSON, @FILE or -.")] = None,
    priority: Annotated[int | None, Parameter(help=PRIORITY_HELP)] = None,
    order_key: Annotated[str | None, Parameter(help=ORDER_KEY_HELP)] = None,
    times: TimeOptions = _NO_TIMES,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Add a schedule that starts a flow or adds a job; replace one with the same id.

    Parameters
    ----------
    id
        The schedule's id.
    """
    target = {
        "flow": flow, "queue": queue, "name": name, "input": read_input(input), "priority": priority,
        "order_key": order_key,
    }  # fmt: skip
    row, is_past = asyncio.run(_add(common, id, times, target))
    schedule = schedule_to_dict(row)
    if times.at is not None and is_past:
        warn(f"--at {times.at} is in the past; the schedule fires as soon as a worker runs.")
    print_result(f"Schedule {id} fires {schedule['when']}, next at {schedule['next']}.", schedule, json=common.json)
    return 0


@schedules.command
def remove(
    id: str,
    /,
    *,
    queue: Annotated[str | None, Parameter(help="Queue of a job scheduler of another program.")] = None,
    yes: Yes = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Remove a schedule, or a job scheduler of another program on Redis.

    Parameters
    ----------
    id
        The schedule's id.
    """
    if not confirm(f"Remove schedule {id}?", yes):
        return EXIT_FAILED
    asyncio.run(_remove(common, id, queue))
    print_result(f"Schedule {id} is removed.", {"id": id, "removed": True}, json=common.json)
    return 0


@schedules.command
def deactivate(flow: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Stop all schedules of a flow: remove those that were added, pause those that the code declares.

    Parameters
    ----------
    flow
        The flow's name.
    """
    ids = list(asyncio.run(_deactivate(common, flow)))
    text = f"Stopped {', '.join(ids)}." if ids else f"No schedule starts flow {flow}."
    print_result(text, {"flow": flow, "schedules": ids}, json=common.json)
    return 0


@schedules.command
def pause(id: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Pause a schedule until it is resumed.

    Parameters
    ----------
    id
        The schedule's id.
    """
    row = asyncio.run(_pause(common, id))
    print_result(f"Schedule {id} is paused.", schedule_to_dict(row), json=common.json)
    return 0


@schedules.command
def resume(id: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Resume a paused schedule at its next time.

    Parameters
    ----------
    id
        The schedule's id.
    """
    row = asyncio.run(_resume(common, id))
    schedule = schedule_to_dict(row)
    print_result(f"Schedule {id} is resumed, next at {schedule['next']}.", schedule, json=common.json)
    return 0


@schedules.command(name="next")
def show_next(
    id: str,
    /,
    *,
    count: Annotated[int, Parameter(help="Maximum number of times.")] = 10,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Print when a schedule fires next.

    Parameters
    ----------
    id
        The schedule's id.
    """
    slots = asyncio.run(_next_slots(common, id, count))
    print_rows([{"at": slot} for slot in slots], ("at",), json=common.json, empty=f"Schedule {id} has no next time.")
    return 0


@schedules.command(name="run-now")
def run_now(id: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Fire a schedule once now, in addition to its regular times.

    Parameters
    ----------
    id
        The schedule's id.
    """
    started = asyncio.run(_run_now(common, id))
    print_result(f"Started {started}.", {"id": id, "started": started}, json=common.json)
    return 0


def schedule_to_dict(row: ScheduleView) -> dict[str, Any]:
    """Return what `schedules --json` prints."""
    return {
        "id": row.id,
        "starts": _describe_target(row),
        "when": _describe_times(row),
        "next": row.next_at,
        "last": row.last_at,
        "fired": row.fired,
        "paused": row.paused,
        "overlap": row.overlap,
        "catchUp": row.catch_up,
        "limit": row.limit,
        "orderKey": row.order_key,
        "start": row.start,
        "end": row.end,
        "origin": row.origin,
        "input": row.input,
        "foreign": row.foreign,
        "unreadable": row.unreadable,
    }


def _describe_target(row: ScheduleView) -> str:
    if row.unreadable is not None:
        return "unreadable"
    return f"flow {row.flow}" if row.flow is not None else f"job in {row.queue}"


def _describe_times(row: ScheduleView) -> str:
    if row.unreadable is not None:
        return "unreadable"
    if row.every_ms is not None:
        return f"every {format_ms(row.every_ms)}"
    if row.at is not None:
        return f"once at {row.at}"
    if row.cron is None:
        return "unknown"
    return f"{row.cron} {row.tz}"


async def _list(common: CommonOptions) -> list[ScheduleView]:
    async with build_store_app(common) as app:
        return await app.schedules.list()


async def _add(common: CommonOptions, id: str, times: TimeOptions, target: dict[str, Any]) -> tuple[ScheduleView, bool]:
    """Return the schedule and whether its next slot is in the past."""
    refuse_memory_store(common)
    when: dict[str, Any] = {name: read_time(getattr(times, name), f"--{name}") for name in ("at", "start", "end")}
    when |= {"every": read_delay(times.every, "--every"), "cron": times.cron, "tz": times.tz}
    policies: dict[str, Any] = {"limit": times.limit, "overlap": times.overlap, "catch_up": times.catch_up}
    async with build_worker_app(common, may_be_remote=True) as app:
        row = await app.schedules.add(id, **target, **when, **policies)
        return row, row.next_at is not None and from_iso(row.next_at) < app.clock.now_ms()


async def _pause(common: CommonOptions, id: str) -> ScheduleView:
    async with build_store_app(common) as app:
        return await app.schedules.pause(id)


async def _resume(common: CommonOptions, id: str) -> ScheduleView:
    async with build_store_app(common) as app:
        return await app.schedules.resume(id)


async def _next_slots(common: CommonOptions, id: str, count: int) -> Sequence[str]:
    async with build_store_app(common) as app:
        return await app.schedules.next_slots(id, count=count)


async def _run_now(common: CommonOptions, id: str) -> str:
    async with build_admin_app(common) as app:
        return await app.schedules.run_now(id)


async def _deactivate(common: CommonOptions, flow: str) -> Sequence[str]:
    async with build_store_app(common) as app:
        return await app.schedules.deactivate(flow)


async def _remove(common: CommonOptions, id: str, queue: str | None) -> None:
    async with build_store_app(common) as app:
        if not await app.schedules.remove(id, queue=queue):
            raise UnknownSchedule(f"no schedule with id {id!r}; run `penstock schedules` to see the ids")
