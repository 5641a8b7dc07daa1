"""A run's events until the run has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from rich.console import Console, ConsoleRenderable
from rich.live import Live

from ..app import App
from ..core.clock import Clock
from ..core.events import Event
from ..core.outage_retry import OutageRetry
from ..flows.reducer import FlowView, apply_flow
from .errors import warn
from .run_view import Picture
from .shutdown_signals import on_stop, stopping

_ENDS = frozenset(("flow.completed", "flow.failed", "flow.compensated", "flow.cancelled"))


async def until_ended(app: App, run: str, after: str | None = None) -> AsyncIterator[Event]:
    """Every event after the cursor, then live, up to the end of the run."""
    stream = f"{app.settings.namespace}:flow:{run}"
    patience = OutageRetry(f"run {run}")
    async with aclosing(app.events.subscribe(stream, after=after)) as events:  # type: ignore[type-var]
        if await patience.call(_is_over, app, run, stream, after):
            return
        ended = False
        async for event in events:
            yield event
            ended = event.kind in _ENDS or (ended and event.kind != "flow.reopened")
            if ended and await patience.call(_is_over, app, run, stream, event.id):
                return


async def _is_over(app: App, run: str, stream: str, cursor: str | None) -> bool:
    """Whether nothing comes after the cursor any more; a redriven run ends more than once."""
    row = await app.store.run(run)
    return row is not None and row.closed and not await app.store.read(stream, after=cursor, limit=1)


REDRAW = 0.1  # seconds; running times move between events


async def work_and_watch(
    app: App, flow: str, id: str, console: Console | None, *, keep: bool = True, place: str = ""
) -> FlowView:
    """Works on a flow's queues and draws the run until it ends, or until a signal; gives the run as it is then."""
    if (await app.run(id)).completed_at is not None:
        return await watch(app, id, console, keep=keep)
    queues = sorted({step.handler.queue_name for step in app.registry.flow(flow).steps.values()})
    working = asyncio.create_task(app.run_worker(queues))
    watching = asyncio.create_task(watch(app, id, console, keep=keep))
    with on_stop(lambda: watching.cancel(), how_to_resume(flow, id, place)):
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        await asyncio.wait((watching,))
        if watching.cancelled() and not working.done():
            warn(stopping(app))
        app.stop_worker()
        await working
    if not watching.cancelled():
        return watching.result()
    view = await app.run(id)
    if console is not None and view.completed_at is not None:  # it ended while it was being stopped
        console.print(Picture(view, app.clock))
    return view


def how_to_resume(flow: str, id: str, place: str = "") -> str:
    """What a person who interrupts a run is told; `place` are the options that find it again."""
    again = f"`penstock worker{place}` goes on with it, or `penstock run {flow} --key {id}{place}`"
    return f"Interrupted. Run {id} is kept: {again}."


async def watch(
    app: App,
    run: str,
    console: Console | None = None,
    *,
    keep: bool = True,
    draw: Callable[[FlowView, Clock], ConsoleRenderable] = Picture,
) -> FlowView:
    """Follows a run to its end and gives it; draws it live if `console` is a terminal, and `keep`s the last picture."""
    view = FlowView(id=run)
    if console is None or not console.is_terminal:
        await _fold(app, run, view)
        return view
    picture = draw(view, app.clock)
    with Live(picture, console=console, auto_refresh=False, transient=not keep) as live:
        # Redrawn on this thread: a view is not to be read while an event changes it.
        redrawing = asyncio.create_task(_redraw(live))
        try:
            await _fold(app, run, view)
        finally:
            redrawing.cancel()
            await asyncio.wait((redrawing,))
            live.refresh()
    return view


async def _fold(app: App, run: str, view: FlowView) -> None:
    async with aclosing(until_ended(app, run)) as events:  # type: ignore[type-var]
        async for event in events:
            apply_flow(view, event)


async def _redraw(live: Live) -> None:
    while True:
        live.refresh()
        await asyncio.sleep(REDRAW)
