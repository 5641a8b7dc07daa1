"""`penstock start FLOW`."""

from __future__ import annotations

import asyncio
import shlex
import sys
from contextlib import redirect_stdout

from ..app import App
from .errors import warn
from .options import PLAIN_START, USUAL_PLACE, Common, Starting
from .output import print_json
from .parse import read_delay, read_input, read_tags
from .session import check_kept, working_app


def start(flow: str, /, *, starting: Starting = PLAIN_START, common: Common = USUAL_PLACE) -> int:
    """Start a run for a worker to take; prints its id.

    Parameters
    ----------
    flow
        The flow's name.
    """
    id, existing = asyncio.run(_start(flow, starting, common))
    if common.json:
        print_json({"id": id, "existing": existing})
    else:
        print(id)
    if existing:
        warn(f"Run {id} was started before: no other one was started. `penstock runs show {id}` shows it.")
    elif sys.stderr.isatty() and sys.stdout.isatty():
        url = f" --url {shlex.quote(common.url)}" if common.url is not None else ""
        warn(f"Started. `penstock worker{common.place}` works on it, `penstock events {id} --follow{url}` shows it.")
    return 0


async def start_run(app: App, flow: str, starting: Starting) -> str:
    """Starts a run with what the command line gives it."""
    return await app.start(
        flow,
        read_input(starting.input),
        key=starting.key,
        delay=read_delay(starting.delay),
        priority=starting.priority,
        tags=read_tags(starting.tag) or None,
    )


async def _start(flow: str, starting: Starting, common: Common) -> tuple[str, bool]:
    """The run's id, and whether it was there before."""
    check_kept(common)
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        async with working_app(common) as app:
            now = app.clock.now_ms()
            id = await start_run(app, flow, starting)
            row = await app.store.run(id)
            return id, row is not None and row.created < now
