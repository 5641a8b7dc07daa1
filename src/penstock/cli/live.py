"""Watching a run: its picture is redrawn as its events come, until it ends."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from rich.console import Console
from rich.live import Live

from ..app import App
from ..flows.reducer import FlowView, apply_flow
from .following import until_ended
from .picture import Picture

REDRAW = 0.1  # seconds; running times move between events


async def watch(app: App, run: str, console: Console | None = None, *, keep: bool = True) -> FlowView:
    """Follows a run to its end and gives it; draws it live if `console` is a terminal, and `keep`s the last picture."""
    view = FlowView(id=run)
    if console is None or not console.is_terminal:
        await _fold(app, run, view)
        return view
    picture = Picture(view, app.clock)
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
