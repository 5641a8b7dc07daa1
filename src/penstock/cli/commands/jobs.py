"""`penstock jobs list|show|stack|execute|retry|cancel|remove|promote`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from ...app import App
from ...app.views import JobPage, JobView
from ...app.waits import describe_wait
from ...core.errors import RunError
from ...ports.unit import JobState
from ...worker.handler_inspection import Inspection
from ..errors import EXIT_FAILED, warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import Reveal, SecretFilter, Yes, confirm, print_text
from ..parse import read_delay, read_input, read_limit
from ..preview import DryRun, IfAttempt, print_dry_run
from ..run_view import error_lines
from ..session import build_store_app, build_worker_app
from ..tables import print_object, print_result, print_rows
from .enqueue import find_queue

jobs = Commands(name="jobs", help="List the jobs of a queue; show, inspect, execute, retry, cancel or remove one.")
_ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
_COLUMNS = ("id", "name", "state", "attempt", "run", "createdAt", "due", "error")


@jobs.command(name="list")
def list_jobs(
    queue: str,
    /,
    *,
    state: Annotated[
        list[JobState] | None,
        Parameter(negative="", help="Only jobs in this state; may be repeated. Default: unfinished jobs."),
    ] = None,
    name: Annotated[str | None, Parameter(help="Only jobs with this name.")] = None,
    after: Annotated[
        str | None, Parameter(help="Only jobs after this one: an id, or the cursor that the page before printed.")
    ] = None,
    limit: Annotated[int, Parameter(help="Maximum number of jobs.")] = 50,
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
    rows = asyncio.run(_list(common, queue, state, name, after, read_limit(limit)))
    columns = (*_COLUMNS, "unreadable") if any(row.unreadable for row in rows) else _COLUMNS
    print_rows(
        [job_to_dict(row, secrets) for row in rows], columns, json=common.json, empty=_describe_none(queue, state, name)
    )
    if rows.is_cut or (rows.cursor is not None and state is None):
        found = "The look-up stopped after 10,000 jobs" if rows.is_cut else "There may be more jobs"
        warn(f"{found}; continue with --after {rows.cursor}.")
    return 0


def _describe_none(queue: str, states: list[JobState] | None, name: str | None) -> str:
    if name is not None:
        return f"No such jobs with the name {name} in queue {queue}."
    if states:
        return f"No {' or '.join(state.value for state in states)} jobs in queue {queue}."
    return f"No unfinished jobs in queue {queue}; --state completed and --state failed list the others."


@jobs.command
def stack(
    id: str,
    /,
    *,
    timeout: Annotated[str, Parameter(help="How long to wait for the worker's answer.")] = "5s",
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Show where the handler of a running job is: its stack, the memory of its process, and its last log line.

    Parameters
    ----------
    id
        The job's id, or that of a run's step.
    """
    found = asyncio.run(_inspect(common, id, timeout))
    if common.json:
        print_object(msgspec.to_builtins(found), json=True)
        return 0
    print_text(f"{found.job} on {found.worker}: attempt {found.attempt}, {found.runner}, {found.memory_mb:g} MB")
    print_text(found.stack.rstrip() or "(this runner has no stack)")
    if found.log:
        print_text(f"last line: {found.log}")
    return 0


async def _inspect(common: CommonOptions, id: str, timeout: str) -> Inspection:
    async with build_store_app(common) as app:
        return await app.jobs.inspect(id, timeout=timeout)


@jobs.command
def execute(
    queue: str,
    /,
    *,
    input: Annotated[str, Parameter(help="Input of the handler, as JSON.")] = "null",
    name: Annotated[str | None, Parameter(help="Name of the job, if several handlers share the queue.")] = None,
    key: Annotated[str | None, Parameter(help="Idempotency key.")] = None,
    timeout: Annotated[str | None, Parameter(help="How long to wait for the end: 30s, 5m. Default: no limit.")] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Run one handler now, recorded as a plain job, and print what happens to it as it happens.

    Parameters
    ----------
    queue
        The queue of the handler, or its job.
    """
    limit = read_delay(timeout, "--timeout")
    last = asyncio.run(_execute(common, queue, read_input(input), name, key, limit))
    return 0 if last == "completed" else EXIT_FAILED


async def _execute(
    common: CommonOptions, queue: str, value: Any, name: str | None, key: str | None, timeout: str | None
) -> str:
    last = ""
    async with build_worker_app(common) as app:
        queue, name = await find_queue(app, queue, name)
        async for frame in app.jobs.execute(queue, value, name=name, key=key, timeout=timeout):
            last = frame.event
            text = msgspec.json.encode(frame.data).decode() if frame.data is not None else ""
            print_text(msgspec.json.encode(frame).decode() if common.json else f"{frame.event:10} {text}".rstrip())
    return last


@jobs.command
def show(id: str, /, *, reveal: Reveal = False, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Show a job with its input, its result or error, and the counts of its children.

    Parameters
    ----------
    id
        The job's id.
    """
    secrets = SecretFilter(common, reveal)
    row, children, waits = asyncio.run(_job(common, id))
    found = job_to_dict(row, secrets)
    if any(children.values()):
        found["children"] = children
    error = row.error if isinstance(row.error, dict) else {}
    if error.get("file"):
        found |= {"file": error["file"], "line": error["line"]}
    if common.json:
        found |= {"frames": error.get("frames", []), "deadLetter": error.get("deadLetter")} if error else {}
    print_object(found, json=common.json)
    if waits and not common.json:
        print_text(f"It is {waits}. `penstock doctor {row.run}` explains how to resolve the wait.")
    if row.state is JobState.FAILED and error and not common.json:
        print_text(*error_lines(secrets.redact_fields(error, "error", "frames")))
    return 0


@jobs.command
def retry(
    id: str,
    /,
    *,
    dry_run: DryRun = False,
    if_attempt: IfAttempt = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Put a failed or cancelled job back into its queue with a fresh set of attempts.

    Parameters
    ----------
    id
        The job's id.
    """
    if dry_run:
        return print_dry_run(common, lambda app: app.jobs.retry(id, dry_run=True, version=if_attempt))
    refusal = "only failed and cancelled jobs can be retried"
    asyncio.run(_act(common, id, refusal, lambda app: app.jobs.retry(id, version=if_attempt)))
    print_result(f"Job {id} is waiting again.", {"id": id, "retried": True}, json=common.json)
    return 0


@jobs.command
def cancel(
    id: str,
    /,
    *,
    reason: Annotated[str, Parameter(help="Recorded with the cancellation.")] = "cancelled",
    dry_run: DryRun = False,
    if_attempt: IfAttempt = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Cancel a job and its children. Running code is interrupted.

    Parameters
    ----------
    id
        The job's id.
    """
    if dry_run:
        return print_dry_run(common, lambda app: app.jobs.cancel(id, reason, dry_run=True, version=if_attempt))
    refusal = "only open jobs can be cancelled"
    asyncio.run(_act(common, id, refusal, lambda app: app.jobs.cancel(id, reason, version=if_attempt)))
    print_result(f"Job {id} is cancelled.", {"id": id, "cancelled": True}, json=common.json)
    return 0


@jobs.command
def promote(id: str, /, *, dry_run: DryRun = False, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Make a delayed job due now.

    Parameters
    ----------
    id
        The job's id.
    """
    if dry_run:
        return print_dry_run(common, lambda app: app.jobs.promote(id, dry_run=True))
    asyncio.run(_act(common, id, "only delayed jobs can be promoted", lambda app: app.jobs.promote(id)))
    print_result(f"Job {id} is due now.", {"id": id, "promoted": True}, json=common.json)
    return 0


@jobs.command
def remove(id: str, /, *, yes: Yes = False, dry_run: DryRun = False, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Delete a job that no worker is running.

    Parameters
    ----------
    id
        The job's id.
    """
    if dry_run:
        return print_dry_run(common, lambda app: app.jobs.remove(id, dry_run=True))
    if not confirm(f"Delete job {id}?", yes):
        return EXIT_FAILED
    asyncio.run(_act(common, id, "a worker is running it", lambda app: app.jobs.remove(id)))
    print_result(f"Job {id} is removed.", {"id": id, "removed": True}, json=common.json)
    return 0


async def _list(
    common: CommonOptions, queue: str, states: list[JobState] | None, name: str | None, after: str | None, limit: int
) -> JobPage:
    wanted = states or [one for one in JobState if one not in _ENDED]
    async with build_store_app(common) as app:
        await app.queues.counts(queue)  # an unknown queue is an error, not an empty list
        return await app.jobs.list(queue, states=wanted, name=name, after=after, limit=limit)


async def _job(common: CommonOptions, id: str) -> tuple[JobView, dict[str, int], str]:
    async with build_store_app(common) as app:
        row = await app.jobs.get(id)
        return row, await app.jobs.count_children(id), await _describe_waits(app, row)


async def _describe_waits(app: App, row: JobView) -> str:
    """Return what a suspended step waits for; "" if the job is not one."""
    if row.run is None or row.state is not JobState.SUSPENDED:
        return ""
    waits = await app.waits.list(run=row.run, limit=1000)
    own = [wait for wait in waits if row.id.startswith(f"{row.run}.{wait.step}.")]
    return "; ".join(describe_wait(wait, app._bodies) for wait in own)


async def _act(common: CommonOptions, id: str, refusal: str, act: Callable[[App], Awaitable[bool]]) -> None:
    async with build_store_app(common) as app:
        row = await app.jobs.get(id)
        if row.run is not None and row.state in (JobState.FAILED, JobState.CANCELLED):
            retry = f"To retry the job's step, use `penstock runs retry {row.run}`"
            refusal = f"it is part of run {row.run} and cannot be changed on its own. {retry}"
        if row.run is not None and row.state is JobState.SUSPENDED:
            text = await _describe_waits(app, row)
            refusal = f"it is {text or 'waiting'}. `penstock doctor {row.run}` explains how to resolve the wait"
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
