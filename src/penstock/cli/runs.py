"""`penstock runs` and `penstock runs show ID`."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

from cyclopts import App as Commands
from cyclopts import Parameter
from rich.console import Console

from ..core.clock import iso
from ..core.durations import show_ms
from ..flows.reducer import FlowView
from ..ports.store import RunRow
from .mistakes import warn
from .options import USUAL_PLACE, Common
from .picture import Picture, plain
from .report import print_json, run_object, unicode_out
from .rows import one_line
from .session import looking_app

LOGS, WIDE = 20, 1000  # lines of log shown, and characters of each
runs = Commands(name="runs", help="List runs, newest first; 'runs show ID' shows one with its steps.")


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
    rows = asyncio.run(_list(common, flow, status, before, limit))
    if not rows:
        warn("No runs.")
    for row in rows:
        if common.json:
            print_json(_object(row))
        else:
            took = show_ms(row.updated - row.created) if row.closed else ""
            print(f"{row.id:<36}  {row.flow:<16}  {row.status:<12}  {iso(row.created)}  {took}".rstrip())
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


async def _list(common: Common, flow: str | None, status: str | None, before: str | None, limit: int) -> list[RunRow]:
    async with looking_app(common) as app:
        return await app.runs(flow=flow, status=status, before=before, limit=limit)


async def _show(common: Common, id: str) -> tuple[FlowView, int]:
    async with looking_app(common) as app:
        return await app.run(id), app.clock.now_ms()


def _extras(view: FlowView) -> list[str]:
    logs = [f"{log['ts']} {log['level']} {log['step']}: {one_line(log['msg'], WIDE)}" for log in view.logs[-LOGS:]]
    return [f"input {one_line(view.input, WIDE)}", *logs]


def _object(row: RunRow) -> dict[str, Any]:
    times = {"createdAt": iso(row.created), "updatedAt": iso(row.updated)}
    return {"id": row.id, "flow": row.flow, "status": row.status, "closed": row.closed, **times}


class _Stopped:
    """A clock that stands still: the picture is of the moment the run was read."""

    def __init__(self, now: int) -> None:
        self._now = now

    def now_ms(self) -> int:
        return self._now
