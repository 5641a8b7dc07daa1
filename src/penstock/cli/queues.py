"""`penstock queues list|pause|resume|drain`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from cyclopts import App as Commands
from cyclopts import Parameter

from ..ports.unit import JobState
from .confirm import NOT_DONE, Yes, confirmed
from .options import USUAL_PLACE, Common
from .session import acting_app
from .tables import done, show_list

queues = Commands(name="queues", help="List queues with their counts by state; pause, resume and drain them.")
_SHOWN = ("queue", "paused", *(state.value for state in JobState))


@queues.command(name="list")
@queues.default
def list_queues(
    *,
    all: Annotated[bool, Parameter(negative="", show_default=False, help="The engine's own queue too.")] = False,
    common: Common = USUAL_PLACE,
) -> int:
    """List queues with their counts by state."""
    show_list(asyncio.run(_list(common, all)), _SHOWN, json=common.json, none="No queues.")
    return 0


@queues.command
def pause(queue: str, /, *, common: Common = USUAL_PLACE) -> int:
    """Hand out nothing more of a queue; what is running ends.

    Parameters
    ----------
    queue
        The queue's name.
    """
    asyncio.run(_set_paused(common, queue, True))
    done(f"Queue {queue} is paused.", {"queue": queue, "paused": True}, json=common.json)
    return 0


@queues.command
def resume(queue: str, /, *, common: Common = USUAL_PLACE) -> int:
    """Hand out a paused queue's jobs again.

    Parameters
    ----------
    queue
        The queue's name.
    """
    asyncio.run(_set_paused(common, queue, False))
    done(f"Queue {queue} goes on.", {"queue": queue, "paused": False}, json=common.json)
    return 0


@queues.command
def drain(
    queue: str,
    /,
    *,
    delayed: Annotated[bool, Parameter(negative="", show_default=False, help="Those that are delayed too.")] = False,
    yes: Yes = False,
    common: Common = USUAL_PLACE,
) -> int:
    """Delete the jobs that wait in a queue. Jobs of runs stay: a run can be cancelled.

    Parameters
    ----------
    queue
        The queue's name.
    """
    if not confirmed(f"Delete what waits in queue {queue}?", yes):
        return NOT_DONE
    count = asyncio.run(_drain(common, queue, delayed))
    message = f"Removed {count} job{'s' * (count != 1)} of queue {queue}."
    done(message, {"queue": queue, "removed": count}, json=common.json)
    return 0


async def _list(common: Common, all: bool) -> list[dict[str, Any]]:
    async with acting_app(common) as app:
        rows = await app.queues.list(internal=all)
        return [{"queue": row.name, "paused": row.paused, **row.counts} for row in rows]


async def _set_paused(common: Common, queue: str, paused: bool) -> None:
    async with acting_app(common) as app:
        await (app.queues.pause(queue) if paused else app.queues.resume(queue))


async def _drain(common: Common, queue: str, delayed: bool) -> int:
    async with acting_app(common) as app:
        return await app.queues.drain(queue, delayed=delayed)
