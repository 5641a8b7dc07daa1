"""`penstock jobs list|show|retry|remove|promote`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from cyclopts import App as Commands
from cyclopts import Parameter

from ..app import App
from ..core.clock import to_iso
from ..core.errors import RunError
from ..core.payload import unpack
from ..ports.store import JobRow
from ..ports.unit import JobState
from .confirm import NOT_DONE, Yes, confirmed
from .options import USUAL_PLACE, Common
from .parse import read_limit
from .secrets import Reveal, Veil
from .session import looking_app
from .tables import done, show_list, show_object

jobs = Commands(name="jobs", help="List the jobs of a queue; show, retry, remove and promote them.")
_ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
_SHOWN = ("id", "name", "state", "attempt", "run", "createdAt", "due", "error")


@jobs.command(name="list")
def list_jobs(
    queue: str,
    /,
    *,
    state: Annotated[JobState | None, Parameter(help="Only jobs in this state; else all that have not ended.")] = None,
    after: Annotated[str | None, Parameter(help="Only jobs after the one of this id; needs --state.")] = None,
    limit: Annotated[int, Parameter(help="At most so many of each state.")] = 50,
    reveal: Reveal = False,
    common: Common = USUAL_PLACE,
) -> int:
    """List the jobs of a queue.

    Parameters
    ----------
    queue
        The queue's name.
    """
    veil = Veil(common, reveal)
    rows = asyncio.run(_list(common, queue, state, after, read_limit(limit)))
    show_list([job_object(row, veil) for row in rows], _SHOWN, json=common.json, none=f"No jobs in queue {queue}.")
    return 0


@jobs.command
def show(id: str, /, *, reveal: Reveal = False, common: Common = USUAL_PLACE) -> int:
    """Show a job with its payload, its result or error, and how its children are.

    Parameters
    ----------
    id
        The job's id.
    """
    veil = Veil(common, reveal)
    row, children = asyncio.run(_job(common, id))
    found = job_object(row, veil)
    if any(children.values()):
        found["children"] = children
    show_object(found, json=common.json)
    return 0


@jobs.command
def retry(id: str, /, *, common: Common = USUAL_PLACE) -> int:
    """Put a failed or cancelled plain job back into its queue, its failures forgotten.

    Parameters
    ----------
    id
        The job's id.
    """
    asyncio.run(_act(common, id, "only a failed or cancelled one can be retried", lambda app: app.queues.retry(id)))
    done(f"Job {id} waits again.", {"id": id, "retried": True}, json=common.json)
    return 0


@jobs.command
def promote(id: str, /, *, common: Common = USUAL_PLACE) -> int:
    """Make a delayed job due now.

    Parameters
    ----------
    id
        The job's id.
    """
    asyncio.run(_act(common, id, "only a delayed one can be promoted", lambda app: app.queues.promote(id)))
    done(f"Job {id} is due now.", {"id": id, "promoted": True}, json=common.json)
    return 0


@jobs.command
def remove(id: str, /, *, yes: Yes = False, common: Common = USUAL_PLACE) -> int:
    """Delete a plain job that no worker holds.

    Parameters
    ----------
    id
        The job's id.
    """
    if not confirmed(f"Delete job {id}?", yes):
        return NOT_DONE
    asyncio.run(_act(common, id, "it cannot be removed while a worker holds it", lambda app: app.queues.remove(id)))
    done(f"Job {id} is gone.", {"id": id, "removed": True}, json=common.json)
    return 0


async def _list(common: Common, queue: str, state: JobState | None, after: str | None, limit: int) -> list[JobRow]:
    states = (state,) if state is not None else tuple(one for one in JobState if one not in _ENDED)
    async with looking_app(common) as app:
        await app.queues.counts(queue)  # a queue that is not there is a mistake, not an empty list
        pages = [await app.queues.jobs(queue, one, after=after, limit=limit) for one in states]
    return [row for page in pages for row in page]


async def _job(common: Common, id: str) -> tuple[JobRow, dict[str, int]]:
    async with looking_app(common) as app:
        return await app.queues.job(id), await app.queues.dependencies(id)


async def _act(common: Common, id: str, why_not: str, act: Callable[[App], Awaitable[bool]]) -> None:
    async with looking_app(common) as app:
        row = await app.queues.job(id)
        if row.run is not None and row.state in (JobState.FAILED, JobState.CANCELLED):
            why_not = f"it is a step of run {row.run}: use `penstock runs retry {row.run}`"
        if not await act(app):
            raise RunError(f"job {id!r} is {row.state.value}: {why_not}")


def job_object(row: JobRow, veil: Veil) -> dict[str, Any]:
    """The object `jobs --json` prints."""
    error = unpack(row.error) if row.error is not None else {}
    found = {
        "id": row.id,
        "queue": row.queue,
        "name": row.name,
        "state": row.state.value,
        "priority": row.priority,
        "due": to_iso(row.due) if row.due and row.state is JobState.DELAYED else None,
        "attempt": row.attempt,
        "failures": row.failures,
        "crashes": row.crashes,
        "run": row.run,
        "parent": row.parent,
        "createdAt": to_iso(row.created),
        "finishedAt": to_iso(row.finished) if row.finished is not None else None,
        "payload": unpack(row.payload),
        "progress": unpack(row.progress) if row.progress is not None else None,
        "result": unpack(row.result) if row.result is not None else None,
        "error": error.get("error"),
    }
    return veil.over(found, "payload", "progress", "result", "error")
