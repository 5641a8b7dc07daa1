"""`penstock enqueue QUEUE`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

from cyclopts import Parameter

from ...app import App
from ...core.errors import UnknownJob, UnknownQueue
from ...core.near_match import did_you_mean
from ..errors import warn
from ..options import COMMON_DEFAULTS, DELAY_HELP, ORDER_KEY_HELP, PRIORITY_HELP, CommonOptions
from ..output import print_json, print_text
from ..parse import read_delay, read_input
from ..session import build_worker_app, refuse_memory_store


def enqueue(
    queue: str,
    /,
    *,
    input: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Input: JSON, @FILE or -.")] = None,
    name: Annotated[str | None, Parameter(help="Name of the job, if several handlers share the queue.")] = None,
    key: Annotated[
        str | None, Parameter(help="Idempotency key; becomes the job's id. The same key adds only one job.")
    ] = None,
    delay: Annotated[str | None, Parameter(allow_leading_hyphen=True, help=DELAY_HELP)] = None,
    priority: Annotated[int | None, Parameter(help=PRIORITY_HELP)] = None,
    order_key: Annotated[str | None, Parameter(help=ORDER_KEY_HELP)] = None,
    correlation_id: Annotated[str | None, Parameter(help="Stored with the job and its events.")] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Add a job to a queue; prints its id.

    Parameters
    ----------
    queue
        The name of the queue, or of the job's function.
    """
    options = {"key": key, "delay": read_delay(delay), "priority": priority, "order_key": order_key}
    options["correlation_id"] = correlation_id
    value = read_input(input)
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        added = asyncio.run(_enqueue(common, queue, value, name, options))
    if added["existing"]:
        warn(f"Job {added['id']} already exists; nothing was added.")
    print_json(added) if common.json else print_text(str(added["id"]))
    return 0


async def _enqueue(
    common: CommonOptions, target: str, input: Any, name: str | None, options: dict[str, Any]
) -> dict[str, object]:
    refuse_memory_store(common)
    async with build_worker_app(common, may_be_remote=True) as app:
        queue, name = await find_queue(app, target, name)
        job = await app.jobs._enqueue(queue, input, name=name, **options)
    return {"id": str(job), "queue": queue, "existing": job.existing}


async def find_queue(app: App, target: str, name: str | None) -> tuple[str, str | None]:
    """Return the queue and the job's name: the target may be the name of either. Raise if no handler has it."""
    jobs = app.registry.jobs
    named = sorted(job for queue, job in jobs if queue == target)
    if named and name is None and not {"*", target} & set(named):
        raise UnknownJob(
            f"the handlers of queue {target!r} process only jobs with their own name; pass --name {named[0]}"
            + (f" (known names: {', '.join(named)})" if len(named) > 1 else "")
        )
    if named or not app.registry.handlers():
        return target, name
    for (queue, job_name), job in jobs.items():
        if target in (job_name, job.handler.name):
            return queue, name or (job_name if job_name != "*" else None)
    if target in [row.name for row in await app.store.queues()] and target not in app.registry.queues():
        return target, name  # a queue of another program
    queues, names = sorted({queue for queue, _ in jobs}), sorted({job.handler.name for job in jobs.values()})
    listed = f"known job queues: {', '.join(queues) or 'none'}; known jobs: {', '.join(names) or 'none'}"
    hint = did_you_mean(target, {*queues, *names}) or listed
    if target in app.registry.queues():
        hint = f"{target!r} is a queue of steps: use `penstock start FLOW` to start a run; {hint}"
    raise UnknownQueue(f"no job or job queue named {target!r}; {hint}")
