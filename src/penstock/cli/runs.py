"""`penstock runs list|show|cancel|retry|replay`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

from cyclopts import App as Commands
from cyclopts import Parameter
from rich.console import Console

from ..app.again import replay_run, retry_run
from ..app.queues import Redriven
from ..core.clock import iso
from ..core.durations import show_ms
from ..core.errors import RunError
from ..flows.reducer import FlowView
from ..ports.store import RunRow
from .confirm import NOT_DONE, Yes, confirmed
from .dlq import told
from .given import read_input, read_limit
from .listing import done, show_list
from .mistakes import warn
from .options import USUAL_PLACE, Common
from .picture import Picture, plain
from .report import print_json, run_object, unicode_out
from .rows import one_line
from .session import acting_app, looking_app

LOGS, WIDE = 20, 1000  # lines of log shown, and characters of each
runs = Commands(name="runs", help="List runs, newest first; show, cancel, retry and replay them.")


@runs.command(name="list")
@runs.default
def list_runs(
    *,
    flow: Annotated[str | None, Parameter(help="Only runs of this flow.")] = None,
    status: Annotated[str | None, Parameter(help="Only runs with this status, such as failed.")] = None,
    before: Annotated[str | None, Parameter(help="Only runs older than the run of this id.")] = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 20,
    common: Common = USUAL_PLACE,
) -> int:
    """List runs, newest first; 'runs show ID' shows one with its steps."""
    rows = asyncio.run(_list(common, flow, status, before, read_limit(limit)))
    if common.json or sys.stdout.isatty() or not rows:
        objects = [_object(row) for row in rows]
        show_list(objects, ("id", "flow", "status", "createdAt", "took"), json=common.json, none="No runs.")
        return 0
    for row in rows:
        print(f"{row.id:<36}  {row.flow:<16}  {row.status:<12}  {iso(row.created)}  {_took(row)}".rstrip())
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
    """Send the failed steps of a failed run again, from their dead letters. A worker then goes on with it.

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


async def _list(common: Common, flow: str | None, status: str | None, before: str | None, limit: int) -> list[RunRow]:
    async with looking_app(common) as app:
        return await app.runs(flow=flow, status=status, before=before, limit=limit)


async def _show(common: Common, id: str) -> tuple[FlowView, int]:
    async with looking_app(common) as app:
        return await app.run(id), app.clock.now_ms()


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
        return await replay_run(app, id, given, key)


def _extras(view: FlowView) -> list[str]:
    logs = [f"{log['ts']} {log['level']} {log['step']}: {one_line(log['msg'], WIDE)}" for log in view.logs[-LOGS:]]
    return [f"input {one_line(view.input, WIDE)}", *logs]


def _object(row: RunRow) -> dict[str, Any]:
    times = {"createdAt": iso(row.created), "updatedAt": iso(row.updated), "took": _took(row) or None}
    return {"id": row.id, "flow": row.flow, "status": row.status, "closed": row.closed, **times}


def _took(row: RunRow) -> str:
    return show_ms(row.updated - row.created) if row.closed else ""


class _Stopped:
    """A clock that stands still: the picture is of the moment the run was read."""

    def __init__(self, now: int) -> None:
        self._now = now

    def now_ms(self) -> int:
        return self._now
