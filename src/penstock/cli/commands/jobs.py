"""`penstock jobs list|show|retry|remove|promote`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from cyclopts import App as Commands
from cyclopts import Parameter

from ...app import App
from ...app.views import JobView
from ...app.waits import describe_wait
from ...core.errors import RunError
from ...ports.unit import JobState
from ..errors import EXIT_FAILED
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import Reveal, SecretFilter, Yes, confirm, print_text
from ..parse import read_limit
from ..run_view import error_lines
from ..session import build_store_app
from ..tables import print_object, print_result, print_rows

jobs = Commands(name="jobs", help="List the jobs of a queue; show, retry, remove or promote one.")
_ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
_COLUMNS = ("id", "name", "state", "attempt", "run", "createdAt", "due", "error")


@jobs.command(name="list")
def list_jobs(
    queue: str,
    /,
    *,
    state: Annotated[JobState | None, Parameter(help="Only jobs in this state; default unfinished jobs.")] = None,
    after: Annotated[str | None, Parameter(help="Only jobs after the job with this id; requires --state.")] = None,
    limit: Annotated[int, Parameter(help="Maximum number of jobs per state.")] = 50,
    reveal: Reveal = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """List the jobs of a queue.

    Parameters
    ----------
    queue
        The queue's name.
    """
    secrets = SecretFilter(common, reveal)
    rows = asyncio.run(_list(common, queue, state, after, read_limit(limit)))
    columns = (*_COLUMNS, "unreadable") if any(row.unreadable for row in rows) else _COLUMNS
    print_rows(
        [job_to_dict(row, secrets) for row in rows], columns, json=common.json, empty=_describe_none(queue, state)
    )
    return 0


def _describe_none(queue: str, state: JobState | None) -> str:
    if state is not None:
        return f"No {state.value} jobs in queue {queue}."
    return f"No unfinished jobs in queue {queue}; --state completed and --state failed list the others."


@jobs.command
def show(id: str, /, *, reveal: Reveal = False, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Show a job with its input, its result or error, and the counts of its children.

    Parameters
    ----------
    id
        The job's id.
    """
    secrets = SecretFilter(common, reveal)
    row, children = asyncio.run(_job(common, id))
    found = job_to_dict(row, secrets)
    if any(children.values()):
        found["children"] = children
    error = row.error if isinstance(row.error, dict) else {}
    if error.get("file"):
        found |= {"file": error["file"], "line": error["line"]}
    if common.json:
        found |= {"frames": error.get("frames", []), "deadLetter": error.get("deadLetter")} if error else {}
    print_object(found, json=common.json)
    if row.state is JobState.FAILED and error and not common.json:
        print_text(*error_lines(secrets.redact_fields(error, "error", "frames")))
    return 0


@jobs.command
def retry(id: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Put a failed or cancelled job back into its queue with a fresh set of attempts.

    Parameters
    ----------
    id
        The job's id.
    """
    asyncio.run(_act(common, id, "only failed and cancelled jobs can be retried", lambda app: app.jobs.retry(id)))
    print_result(f"Job {id} is waiting again.", {"id": id, "retried": True}, json=common.json)
    return 0


@jobs.command
def promote(id: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Make a delayed job due now.

    Parameters
    ----------
    id
        The job's id.
    """
    asyncio.run(_act(common, id, "only delayed jobs can be promoted", lambda app: app.jobs.promote(id)))
    print_result(f"Job {id} is due now.", {"id": id, "promoted": True}, json=common.json)
    return 0


@jobs.command
def remove(id: str, /, *, yes: Yes = False, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Delete a job that no worker is running.

    Parameters
    ----------
    id
        The job's id.
    """
    if not confirm(f"Delete job {id}?", yes):
        return EXIT_FAILED
    asyncio.run(_act(common, id, "a worker is running it", lambda app: app.jobs.remove(id)))
    print_result(f"Job {id} is removed.", {"id": id, "removed": True}, json=common.json)
    return 0


async def _list(
    common: CommonOptions, queue: str, state: JobState | None, after: str | None, limit: int
) -> list[JobView]:
    states = (state,) if state is not None else tuple(one for one in JobState if one not in _ENDED)
    async with build_store_app(common) as app:
        await app.queues.counts(queue)  # an unknown queue is an error, not an empty list
        pages = [await app.jobs.list(queue, one, after=after, limit=limit) for one in states]
    return [row for page in pages for row in page]


async def _job(common: CommonOptions, id: str) -> tuple[JobView, dict[str, int]]:
    async with build_store_app(common) as app:
        return await app.jobs.get(id), await app.jobs.count_children(id)


async def _act(common: CommonOptions, id: str, refusal: str, act: Callable[[App], Awaitable[bool]]) -> None:
    async with build_store_app(common) as app:
        row = await app.jobs.get(id)
        if row.run is not None and row.state in (JobState.FAILED, JobState.CANCELLED):
            refusal = f"it is a step of run {row.run}; run `penstock runs retry {row.run}`"
        if row.run is not None and row.state is JobState.SUSPENDED:
            waits = await app.waits.list(run=row.run, limit=1000)
            own = [wait for wait in waits if row.id.startswith(f"{row.run}.{wait.step}.")]
            text = "; ".join(f"it is {describe_wait(wait, app._bodies)}" for wait in own) or "it waits"
            refusal = f"{text}. `penstock doctor {row.run}` explains how to resolve the wait"
        if not await act(app):
            raise RunError(f"job {id!r} is {row.state.value}; {refusal}")


def job_to_dict(row: JobView, secrets: SecretFilter) -> dict[str, Any]:
    """Return what `jobs --json` prints."""
    error = row.error if isinstance(row.error, dict) else {"error": row.error}
    found = {
        "id": row.id,
        "queue": row.queue,
        "name": row.name,
        "state": row.state.value,
        "priority": row.priority,
        "due": row.due_at if row.state in (JobState.DELAYED, JobState.SUSPENDED) else None,
        "attempt": row.attempt,
        "failures": row.failures,
        "crashes": row.crashes,
        "run": row.run,
        "parent": row.parent,
        "orderKey": row.order_key,
        "waitsFor": row.waits_for,
        "createdAt": row.created_at,
        "finishedAt": row.finished_at,
        "input": row.input,
        "progress": row.progress,
        "result": row.result,
        "error": error.get("error"),
    }
    if row.unreadable is not None:
        found["unreadable"] = row.unreadable
    return secrets.redact_fields(found, "input", "progress", "result", "error")
