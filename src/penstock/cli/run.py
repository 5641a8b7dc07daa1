"""`penstock run FLOW`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from rich.console import Console

from ..app import App
from ..flows.reducer import FlowView
from .given import read_delay, read_input, read_tags
from .live import watch
from .mistakes import INTERRUPTED, warn
from .options import PLAIN_START, USUAL_PLACE, Common, Starting
from .picture import plain
from .report import exit_code, print_json, run_object, unicode_out
from .session import working_app
from .stopping import on_stop, stopping


def run(flow: str, /, *, starting: Starting = PLAIN_START, common: Common = USUAL_PLACE) -> int:
    """Start a run and work on it here, with live progress, until it ends.

    With the --key of a run that has not ended, that run is continued. Ctrl-C leaves the run in the store.

    Parameters
    ----------
    flow
        The flow's name.
    """
    return asyncio.run(_run(flow, starting, common))


async def _run(flow: str, starting: Starting, common: Common) -> int:
    input = read_input(starting.input)
    tags, delay = read_tags(starting.tag), read_delay(starting.delay)
    with _handlers_print_aside(common.json):
        app = working_app(common)
        async with app:
            await _say_if_known(app, starting.key)
            id = await app.start(
                flow, input, idempotency_key=starting.key, delay=delay, priority=starting.priority, tags=tags or None
            )
            view = await work_and_watch(app, flow, id, _console(common.json), keep=not common.json)
            now = app.clock.now_ms()
    if view is None:
        warn(f"Interrupted. Run {id} is kept: `penstock worker` goes on with it, or `penstock run {flow} --key {id}`.")
        return INTERRUPTED
    if common.json:
        print_json(run_object(view))
    elif not sys.stdout.isatty():
        print(plain(view, now, unicode_out()))
    return exit_code(view)


async def work_and_watch(
    app: App, flow: str, id: str, console: Console | None, *, keep: bool = True
) -> FlowView | None:
    """Works on a flow's queues and draws the run until it ends; None if it was interrupted first."""
    queues = sorted({step.handler.home for step in app.registry.flow(flow).steps.values()})
    working = asyncio.create_task(app.run_worker(queues))
    watching = asyncio.create_task(watch(app, id, console, keep=keep))
    with on_stop(lambda: watching.cancel()):
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        await asyncio.wait((watching,))
        if watching.cancelled() and not working.done():
            warn(stopping(app))
        app.stop_worker()
        await working
    return None if watching.cancelled() else watching.result()


async def _say_if_known(app: App, key: str | None) -> None:
    row = await app.store.run(key) if key is not None else None
    if row is not None:
        warn(f"Run {key} {'ended before: here it is' if row.closed else 'was started before: going on with it'}.")


def _console(json: bool) -> Console | None:
    """Where to draw live: the answer itself if a person reads it, else beside it."""
    if sys.__stdout__ is not None and sys.__stdout__.isatty() and not json:
        return Console(file=sys.__stdout__)
    return Console(stderr=True) if sys.stderr.isatty() else None


@contextmanager
def _handlers_print_aside(json: bool) -> Iterator[None]:
    """What handlers print must not get into an answer that a program reads."""
    if json or not sys.stdout.isatty():
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield
