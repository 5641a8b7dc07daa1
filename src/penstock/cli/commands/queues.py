"""`penstock queues list|pause|resume|drain`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from cyclopts import App as Commands
from cyclopts import Parameter

from ...ports.unit import JobState
from ..errors import EXIT_FAILED
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import Yes, confirm
from ..session import build_admin_app
from ..tables import pluralize, print_result, print_rows

queues = Commands(name="queues", help="List queues with their counts by state; pause, resume or drain one.")
_COLUMNS = ("queue", "paused", *(state.value for state in JobState))


@queues.command(name="list")
@queues.default
def list_queues(
    *,
    all: Annotated[bool, Parameter(negative="", show_default=False, help="Include the engine's own queue.")] = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """List queues with their counts by state."""
    print_rows(asyncio.run(_list(common, all)), _COLUMNS, json=common.json, empty="No queues.")
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
        return [{"queue": row.name, "paused": row.paused, **row.counts} for row in rows]


async def _set_paused(common: CommonOptions, queue: str, paused: bool) -> None:
    async with build_admin_app(common) as app:
        await (app.queues.pause(queue) if paused else app.queues.resume(queue))


async def _drain(common: CommonOptions, queue: str, delayed: bool) -> int:
    async with build_admin_app(common) as app:
        return await app.queues.drain(queue, delayed=delayed)
