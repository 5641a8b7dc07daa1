"""`penstock runs list|show|pause|resume|cancel|retry|replay|fork`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

from cyclopts import App as Commands
from cyclopts import Parameter
from rich.console import Console

from ..app import App
from ..app.options import RunSearch
from ..app.queues import Redriven
from ..app.run_actions import replay_run, retry_run
from ..core.clock import to_iso
from ..core.durations import format_ms
from ..core.errors import RunError, UnknownFlow
from ..core.near_match import did_you_mean
from ..flows.reducer import FlowView
from ..ports.store import RunRow
from .confirm import NOT_DONE, Yes, confirmed
from .dlq import told
from .errors import warn
from .options import USUAL_PLACE, Common
from .output import print_json, run_object, unicode_out
from .parse import read_ago, read_input, read_limit, read_tags
from .run_view import Picture, one_line, plain
from .session import acting_app, looking_app
from .tables import done, show_list

_SHOWN = ("id", "flow", "status", "createdAt", "took")
LOGS, WIDE = 20, 1000  # lines of log shown, and characters of each
runs = Commands(name="runs", help="List runs, newest first; show, pause, resume, cancel, retry, replay and fork them.")


@runs.command(name="list")
@runs.default
def list_runs(
    *,
    flow: Annotated[str | None, Parameter(help="Only runs of this flow.")] = None,
    status: Annotated[str | None, Parameter(help="Only runs with this status, such as failed.")] = None,
    tag: Annotated[
        list[str] | None, Parameter(negative="", help="Only runs with this tag name=value; may be repeated.")
    ] = None,
    where: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help="Only runs whose input contains this JSON, @FILE, -.")
    ] = None,
    since: Annotated[str | None, Parameter(help="Only runs begun in the last 2h, say, or since a time.")] = None,
    until: Annotated[str | None, Parameter(help="Only runs begun more than 2h ago, say, or before a time.")] = None,
    before: Annotated[str | None, Parameter(help="Only runs older than the run of this id.")] = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 20,
    common: Common = USUAL_PLACE,
) -> int:
    """List runs, newest first; 'runs show ID' shows one with its steps."""
    which = RunSearch(
        flow=flow,
        status=status,
        tags=read_tags(tag),
        where=read_input(where, "--where"),
        since=read_ago(since, "--since"),
        until=read_ago(until, "--until"),
        before=before,
        limit=read_limit(limit),
    )
    rows = asyncio.run(_list(common, which))
    none = "No runs." if flow is None else f"No runs of flow {flow}."
    show_list([_object(row) for row in rows], _SHOWN, json=common.json, none=none)
    return 0


@runs.command
def show(id: str, /, *, common: Common = USUAL_PLACE) -> int:
    """Show a run with its steps, its logs and its result or error.

    Parameters
    ----------
    id
        The run's id.
    """
    view, now = asyncio.run(_show(common, id))
    if common.json:
        print_json(run_object(view))
    elif sys.stdout.isatty():
        Console().print(Picture(view, _Stopped(now)), *_extras(view), sep="\n", markup=False, highlight=False)
    else:
        print(plain(view, now, unicode_out()), *_extras(view), sep="\n")
    return 0


@runs.command
def pause(
    id: str,
    /,
    *,
    reason: Annotated[str, Parameter(help="Recorded with it.")] = "paused by request",
    common: Common = USUAL_PLACE,
) -> int:
    """Halt a run: what is running may end, nothing more of it begins. What it waits for may come meanwhile.

    Parameters
    ----------
    id
        The run's id.
    """
    asyncio.run(_pause(common, id, reason))
    done(f"Run {id} is paused.", {"id": id, "paused": True}, json=common.json)
    return 0


@runs.command
def resume(
    id: str,
    /,
    *,
    reason: Annotated[str, Parameter(help="Recorded with it.")] = "resumed by request",
    common: Common = USUAL_PLACE,
) -> int:
    """Let a paused run go on, with whatever has come meanwhile.

    Parameters
    ----------
    id
        The run's id.
    """
    asyncio.run(_resume(common, id, reason))
    done(f"Run {id} goes on.", {"id": id, "paused": False}, json=common.json)
    return 0


@runs.command
def fork(
    id: str,
    /,
    *,
    at: Annotated[str, Parameter(help="The id of an event of that run; 'penstock events ID' lists them.")],
    key: Annotated[str | None, Parameter(help="Idempotency key, which becomes the new run's id.")] = None,
    common: Common = USUAL_PLACE,
) -> int:
    """Start a new run that has the past of a run up to an event and goes on from there; prints its id.

    Parameters
    ----------
    id
        The run's id.
    """
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        new = asyncio.run(_fork(common, id, at, key))
    done(new, {"id": new, "forkOf": id, "at": at}, json=common.json)
    return 0


@runs.command
def cancel(
    id: str,
    /,
    *,
    reason: Annotated[str, Parameter(help="Recorded with it.")] = "cancelled by request",
    yes: Yes = False,
    common: Common = USUAL_PLACE,
) -> int:
    """Cancel a run for good: queued steps are dropped, running ones are told.

    Parameters
    ----------
    id
        The run's id.
    """
    if not confirmed(f"Cancel run {id} for good?", yes):
        return NOT_DONE
    asyncio.run(_cancel(common, id, reason))
    done(f"Run {id} is cancelled.", {"id": id, "cancelled": True}, json=common.json)
    return 0


@runs.command
def retry(id: str, /, *, common: Common = USUAL_PLACE) -> int:
    """Send the failed steps of a failed run again, with what they have recorded. A worker then goes on with it.

    Parameters
    ----------
    id
        The run's id.
    """
    return told(asyncio.run(_retry(common, id)), common.json)


@runs.command
def replay(
    id: str,
    /,
    *,
    input: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Another input: JSON, @FILE, -.")] = None,
    key: Annotated[str | None, Parameter(help="Idempotency key, which becomes the new run's id.")] = None,
    common: Common = USUAL_PLACE,
) -> int:
    """Start a new run of the same flow with the recorded input, for a worker to take; prints its id.

    Parameters
    ----------
    id
        The run's id.
    """
    given = None if input is None else [read_input(input)]
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        new = asyncio.run(_replay(common, id, given, key))
    done(new, {"id": new, "replayOf": id}, json=common.json)
    if sys.stderr.isatty() and sys.stdout.isatty():
        warn(f"Started. `penstock tail {new}` shows it.")
    return 0


async def _list(common: Common, which: RunSearch) -> list[RunRow]:
    async with looking_app(common) as app:
        if (before := which.get("before")) is not None:
            await app.run(before)  # a run that is not there is a mistake, not the end of the list
        rows, flow = await app.runs(**which), which.get("flow")
        if flow is not None and not rows and not await app.runs(flow=flow, limit=1):
            known = sorted({row.flow for row in await app.runs(limit=1000)})
            if hint := did_you_mean(flow, known):
                raise UnknownFlow(f"there is no run of flow {flow!r}: {hint}")
        return rows


async def _show(common: Common, id: str) -> tuple[FlowView, int]:
    async with looking_app(common) as app:
        return await app.run(id), app.clock.now_ms()


async def _pause(common: Common, id: str, reason: str) -> None:
    async with looking_app(common) as app:
        if not await app.pause(id, reason):
            raise RunError(f"run {id!r} is {(await app.run(id)).status}: it cannot be paused")


async def _resume(common: Common, id: str, reason: str) -> None:
    async with looking_app(common) as app:
        if not await app.resume(id, reason):
            raise RunError(f"run {id!r} is {(await app.run(id)).status}, not paused")


async def _fork(common: Common, id: str, at: str, key: str | None) -> str:
    async with acting_app(common) as app:
        used = await _is_used(app, key)
        new = await app.fork(id, at, key=key)
        if used:
            warn(f"Run {new} was there already: its key had been used, and nothing was started.")
        return new


async def _cancel(common: Common, id: str, reason: str) -> None:
    async with looking_app(common) as app:
        if not await app.cancel(id, reason):
            status = (await app.run(id)).status
            raise RunError(f"run {id!r} is {status}: there is nothing left to cancel")


async def _retry(common: Common, id: str) -> Redriven:
    async with acting_app(common) as app:
        return await retry_run(app, id)


async def _replay(common: Common, id: str, given: list[Any] | None, key: str | None) -> str:
    async with acting_app(common) as app:
        used = await _is_used(app, key)
        new = await replay_run(app, id, given, key)
        if used:
            warn(f"Run {new} was there already: its key had been used, and nothing was started.")
        return new


async def _is_used(app: App, key: str | None) -> bool:
    return key is not None and await app.store.run(key) is not None


def _extras(view: FlowView) -> list[str]:
    logs = [f"{log['ts']} {log['level']} {log['step']}: {one_line(log['msg'], WIDE)}" for log in view.logs[-LOGS:]]
    return [f"input {one_line(view.input, WIDE)}", *logs]


def _object(row: RunRow) -> dict[str, Any]:
    times = {"createdAt": to_iso(row.created), "updatedAt": to_iso(row.updated), "took": _took(row) or None}
    return {"id": row.id, "flow": row.flow, "status": row.status, "closed": row.closed, **times}


def _took(row: RunRow) -> str:
    return format_ms(row.updated - row.created) if row.closed else ""


class _Stopped:
    """A clock that stands still: the picture is of the moment the run was read."""

    def __init__(self, now: int) -> None:
        self._now = now

    def now_ms(self) -> int:
        return self._now
