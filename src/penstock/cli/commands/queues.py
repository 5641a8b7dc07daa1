"""`penstock queues list|rates|pause|resume|drain`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import App as Commands
from cyclopts import Parameter

from ...app.views import QueueMinute
from ...core.durations import format_ms
from ...ports.unit import JobState
from ..errors import EXIT_FAILED
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import Yes, confirm
from ..session import build_admin_app
from ..tables import pluralize, print_result, print_rows

queues = Commands(name="queues", help="List queues with their counts by state; show rates, pause, resume or drain one.")
_COLUMNS = ("queue", "paused", "oldest", *(state.value for state in JobState))
_RATE_COLUMNS = ("minute", "added", "completed", "failed", "retried")


@queues.command(name="list")
@queues.default
def list_queues(
    *,
    all: Annotated[bool, Parameter(negative="", show_default=False, help="Include the engine's own queue.")] = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """List queues with their counts by state, and how long the job that is next in line has waited."""
    rows = asyncio.run(_list(common, all))
    if not common.json:
        rows = [row | {"oldest": format_ms(row["ageMs"]) if row["oldest"] is not None else None} for row in rows]
    print_rows(rows, _COLUMNS, json=common.json, empty="No queues.")
    return 0


@queues.command
def rates(
    queue: str,
    /,
    *,
    since: Annotated[str, Parameter(help="How far to look back: 10m, 24h, 7d.")] = "1h",
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Show how many jobs were added, completed, failed and retried, by minute. A week is kept.

    With --json, minutes without any job are shown too.

    Parameters
    ----------
    queue
        The queue's name.
    """
    rows = [
        {"minute": one.at, "added": one.added, "completed": one.completed, "failed": one.failed, "retried": one.retried}
        for one in asyncio.run(_rates(common, queue, since))
    ]
    if not common.json:
        rows = [row for row in rows if any(row[column] for column in _RATE_COLUMNS[1:])]
    print_rows(rows, _RATE_COLUMNS, json=common.json, empty=f"Nothing happened in queue {queue} in the last {since}.")
    return 0


@queues.command
def pause(queue: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Pause a queue: running jobs finish, no other job starts.

    Parameters
    ----------
    queue
        The queue's name.
    """
    asyncio.run(_set_paused(common, queue, True))
    print_result(f"Queue {queue} is paused.", {"queue": queue, "paused": True}, json=common.json)
    return 0


@queues.command
def resume(queue: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Resume a paused queue.

    Parameters
    ----------
    queue
        The queue's name.
    """
    asyncio.run(_set_paused(common, queue, False))
    print_result(f"Queue {queue} is resumed.", {"queue": queue, "paused": False}, json=common.json)
    return 0


@queues.command
def drain(
    queue: str,
    /,
    *,
    delayed: Annotated[bool, Parameter(negative="", show_default=False, help="Delete delayed jobs too.")] = False,
    yes: Yes = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Delete the waiting jobs of a queue. Steps of runs stay; cancel their run instead.

    Parameters
    ----------
    queue
        The queue's name.
    """
    if not confirm(f"Delete the waiting jobs of queue {queue}?", yes):
        return EXIT_FAILED
    count = asyncio.run(_drain(common, queue, delayed))
    message = f"Removed {pluralize(count, 'job')} from queue {queue}."
    print_result(message, {"queue": queue, "removed": count}, json=common.json)
    return 0


async def _list(common: CommonOptions, all: bool) -> list[dict[str, Any]]:
    async with build_admin_app(common) as app:
        rows = await app.queues.list(internal=all)
        return [
            {"queue": row.name, "paused": row.paused, "oldest": row.oldest_at, "ageMs": row.age_ms, **row.counts}
            for row in rows
        ]


async def _rates(common: CommonOptions, queue: str, since: str) -> Sequence[QueueMinute]:
    async with build_admin_app(common) as app:
        return await app.queues.rates(queue, since=since)


async def _set_paused(common: CommonOptions, queue: str, paused: bool) -> None:
    async with build_admin_app(common) as app:
        await (app.queues.pause(queue) if paused else app.queues.resume(queue))


async def _drain(common: CommonOptions, queue: str, delayed: bool) -> int:
    async with build_admin_app(common) as app:
        return await app.queues.drain(queue, delayed=delayed)
