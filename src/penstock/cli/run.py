"""`penstock run FLOW`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext, redirect_stdout

from rich.console import Console

from ..app import App
from ..core.ids import check_id
from .errors import INTERRUPTED, warn
from .live import how_to_resume, work_and_watch
from .options import PLAIN_START, USUAL_PLACE, Common, Starting
from .output import exit_code, print_json, run_object, unicode_out
from .run_view import plain
from .session import working_app
from .start import start_run


def run(flow: str, /, *, starting: Starting = PLAIN_START, common: Common = USUAL_PLACE) -> int:
    """Start a run and work on it here, with live progress, until it ends.

    With the --key of a run that has not ended, that run is continued. Ctrl-C leaves the run in the store.
    It is a worker of the flow's queues until then: whatever else waits in those is worked on too.

    Parameters
    ----------
    flow
        The flow's name.
    """
    return asyncio.run(_run(flow, starting, common))


async def _run(flow: str, starting: Starting, common: Common) -> int:
    shown = sys.stdout.isatty() and not common.json  # live on stdout, where the last picture is the answer
    console = Console() if shown else Console(stderr=True) if sys.stderr.isatty() else None
    # What handlers print must not get into an answer that a program reads.
    with nullcontext() if shown else redirect_stdout(sys.stderr):
        async with working_app(common) as app:
            id = await _id(app, flow, starting)
            view = await work_and_watch(app, flow, id, console, keep=shown, place=common.place)
            now = app.clock.now_ms()
    if view.completed_at is None:
        warn(how_to_resume(flow, id, common.place))
        return INTERRUPTED
    if common.json:
        print_json(run_object(view))
    elif not shown:
        print(plain(view, now, unicode_out()))
    return exit_code(view)


async def _id(app: App, flow: str, starting: Starting) -> str:
    """The run of the key, if there is one: it goes on with the input it has. Else a new one."""
    key = starting.key
    row = await app.store.run(check_id(key, "idempotency key")) if key is not None else None
    if row is None or row.flow != app.registry.flow(flow).name:  # a run of another flow is for `start` to refuse
        return await start_run(app, flow, starting)
    if starting.input is not None:
        await start_run(app, flow, starting)  # starts nothing, and warns of an input that is not the run's
    warn(f"Run {row.id} {'ended before: here it is' if row.closed else 'was started before: going on with it'}.")
    return row.id
