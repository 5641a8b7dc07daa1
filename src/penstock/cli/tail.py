"""`penstock tail RUN`."""

from __future__ import annotations

import asyncio
import sys

from rich.console import Console

from ..flows.reducer import FlowView
from .errors import INTERRUPTED
from .events import events
from .live import watch
from .options import USUAL_PLACE, Common
from .output import exit_code
from .session import looking_app
from .shutdown_signals import on_stop
from .timeline import Timeline


def tail(run: str, /, *, common: Common = USUAL_PLACE) -> int:
    """Watch a run live, as a timeline of its steps, until it ends. Ctrl-C ends the watching, not the run.

    Into a pipe, and with --json, its events are printed as they come.

    Parameters
    ----------
    run
        The run's id.
    """
    if common.json or not sys.stdout.isatty():
        return events(run, follow=True, common=common)
    view = asyncio.run(_tail(common, run))
    return INTERRUPTED if view is None else exit_code(view)


async def _tail(common: Common, run: str) -> FlowView | None:
    async with looking_app(common) as app:
        await app.runs.get(run)  # a run that is not there is a mistake
        watching = asyncio.create_task(watch(app, run, Console(), draw=Timeline))
        with on_stop(lambda: watching.cancel()):
            await asyncio.wait((watching,))
        return None if watching.cancelled() else watching.result()
