"""`penstock tail RUN`."""

from __future__ import annotations

import asyncio
import sys

from rich.console import Console

from ...flows.reducer import RunView
from ..errors import EXIT_INTERRUPTED
from ..live import watch
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import exit_code
from ..session import build_store_app
from ..shutdown_signals import handle_stop_signals
from ..timeline import Timeline
from .events import events


def tail(run: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Watch a run live, as a timeline of its steps, until it ends. Ctrl-C stops watching, not the run.

    In a pipe, and with --json, prints the run's events as they arrive.

    Parameters
    ----------
    run
        The run's id.
    """
    if common.json or not sys.stdout.isatty():
        return events(run, follow=True, common=common)
    view = asyncio.run(_tail(common, run))
    return EXIT_INTERRUPTED if view is None else exit_code(view)


async def _tail(common: CommonOptions, run: str) -> RunView | None:
    async with build_store_app(common) as app:
        await app.runs.get(run)  # an unknown run is an error
        watching = asyncio.create_task(watch(app, run, Console(), draw=Timeline))
        with handle_stop_signals(lambda: watching.cancel()):
            await asyncio.wait((watching,))
        return None if watching.cancelled() else watching.result()
