"""`penstock enqueue QUEUE`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout
from typing import Annotated

from cyclopts import Parameter

from ..app import App
from ..core.errors import UnknownQueue
from ..core.ids import check_job_id
from ..core.near_match import did_you_mean
from .errors import warn
from .options import USUAL_PLACE, Common
from .output import print_json
from .parse import read_delay, read_input
from .session import check_kept, working_app


def enqueue(
    queue: str,
    /,
    *,
    input: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Its payload: JSON, @FILE, -.")] = None,
    name: Annotated[str | None, Parameter(help="The job's name, where several handlers share a queue.")] = None,
    id: Annotated[str | None, Parameter(help="Its id: the same id is added once.")] = None,
    delay: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Begin later: 30s, 1h30m.")] = None,
    priority: Annotated[int | None, Parameter(help="Lower goes first.")] = None,
    common: Common = USUAL_PLACE,
) -> int:
    """Add a plain job for a worker to take; prints its id.

    Parameters
    ----------
    queue
        The queue's name, or that of the job's function.
    """
    payload, wait = read_input(input), read_delay(delay)
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        added = asyncio.run(_enqueue(common, queue, payload, (name, id, wait, priority)))
    if added["existing"]:
        warn(f"Job {added['id']} was added before: nothing was added.")
    print_json(added) if common.json else print(added["id"])
    return 0


async def _enqueue(
    common: Common, word: str, payload: object, options: tuple[str | None, str | None, str | None, int | None]
) -> dict[str, object]:
    name, id, delay, priority = options
    check_kept(common)
    async with working_app(common) as app:
        queue, name = await _target(app, word, name)
        there = await app.store.job(check_job_id(id)) if id is not None else None
        new = await app.enqueue(queue, payload, name=name, key=id, delay=delay, priority=priority)
    return {"id": new, "queue": queue, "existing": there is not None}


async def _target(app: App, word: str, name: str | None) -> tuple[str, str | None]:
    """The queue that is meant, and the job's name: a word may be a queue's or a job's."""
    jobs = app.registry.jobs
    if any(queue == word for queue, _ in jobs) or not app.registry.handlers():
        return word, name
    for (queue, of), job in jobs.items():
        if word in (of, job.handler.name):
            return queue, name or (of if of != "*" else None)
    if word in [row.name for row in await app.store.queues()] and word not in app.registry.queues():
        return word, name  # someone else's
    known = sorted({queue for queue, _ in jobs} | {job.handler.name for job in jobs.values()})
    hint = did_you_mean(word, known) or f"known are {', '.join(known) or 'none'}"
    if word in app.registry.queues():
        hint = f"it is a queue of steps, to which `penstock start FLOW` adds; {hint}"
    raise UnknownQueue(f"no job here is called {word!r} or has a queue of that name: {hint}")
