"""Follow a run to its end, drawing it live on a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from ..app import App
from ..core.clock import Clock
from ..core.events import Event
from ..core.outage_retry import OutageRetry
from ..dags.reducer import apply_dag
from ..flows.reducer import RunView
from ..flows.run_record import CLOSED
from ..ports.unit import FLOW, JobState
from .errors import warn
from .run_view import describe_waits
from .shutdown_signals import handle_stop_signals, stop_message

if TYPE_CHECKING:
    from rich.console import Console, ConsoleRenderable  # only a terminal needs it, and it takes long to import
    from rich.live import Live

REDRAW_INTERVAL_S = 0.1  # running times change between events
LAUNCHED_POLL_S = 0.05
MAX_WAIT_LINES = 20  # printed for a run
WAIT_STARTED_KINDS = frozenset(("step.await.time", "step.await.event", "step.await.trigger"))
START_TIMEOUT_S = 5.0  # a run that was started appears within this time


async def work_and_watch(
    app: App,
    flow: str,
    id: str,
    console: Console | None,
    *,
    all_work: bool = False,
    keep: bool = True,
    flags: str = "",
    has_wait_lines: bool = False,
) -> RunView:
    """Work on a run and draw it until it ends or a stop signal comes; return the run's last state.

    With `all_work`, work on every job of the worker files' queues meanwhile. Without a terminal, `has_wait_lines`
    prints a line on stderr for each wait."""
    if (await app.runs.get(id)).completed_at is not None:
        return await watch(app, id, console, keep=keep)
    runs = None if all_work else await _list_open_tree(app, id)
    working = asyncio.create_task(app.workers.run(runs=runs))
    watching = asyncio.create_task(_watch_to_end(app, id, console, keep, has_wait_lines))
    with handle_stop_signals(lambda: watching.cancel(), resume_hint(flow, id, flags)):
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        await asyncio.wait((watching,))
        if watching.cancelled() and not working.done():
            warn(stop_message(app))
        app.workers.stop()
        await working
    if not watching.cancelled():
        return watching.result()
    view = await app.runs.get(id)
    if console is not None and view.completed_at is not None:  # it ended while the worker was stopping
        from .run_panel import RunPanel

        console.print(RunPanel(view, app.clock))
    return view


async def _list_open_tree(app: App, run: str) -> list[str]:
    """Return a run and the open runs that it called, which a run that is continued may wait for."""
    found = [run]
    for id in found:  # it grows
        last = None
        while page := await app.runs.list(parent=id, status="open", before=last, limit=500):
            found += [one.id for one in page]
            last = page[-1].id
    return found


async def _watch_to_end(app: App, id: str, console: Console | None, keep: bool, has_wait_lines: bool) -> RunView:
    """Follow the run to its end, then wait while what it started can be worked on."""
    view = await watch(app, id, console, keep=keep, has_wait_lines=has_wait_lines)
    deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
    while await _has_launched_work(app, asyncio.get_running_loop().time() < deadline):  # noqa: ASYNC110 - no one signal covers it
        await asyncio.sleep(LAUNCHED_POLL_S)
    return view


async def _has_launched_work(app: App, may_start: bool) -> bool:
    """Return whether a worker can do something now that the run has started: a job, or a step of another run.

    A run appears a moment after its start is committed: until then it counts if `may_start`."""
    launched = app.workers.launched
    jobs = list(launched.jobs)
    for id in launched.runs:
        row = await app.store.run(id)
        if row is None and may_start:
            return True
        if row is not None and not row.closed:
            jobs += (await app._engines.load_record(row)).job_ids(id, row.record)
    rows = [await app.store.job(id) for id in jobs]
    served = app.registry.queues()  # a job in another queue is for another program
    return any(
        row is not None and row.queue in served and row.state in (JobState.WAITING, JobState.ACTIVE) for row in rows
    )


def resume_hint(flow: str, id: str, flags: str = "") -> str:
    """Return what to print when a run is interrupted; `flags` are the options that find the run again."""
    commands = f"`penstock worker{flags}` or `penstock run {flow} --key {id}{flags}`"
    return f"Interrupted. Run {id} is kept; continue it with {commands}."


async def watch(
    app: App,
    run: str,
    console: Console | None = None,
    *,
    keep: bool = True,
    draw: Callable[[RunView, Clock], ConsoleRenderable] | None = None,
    has_wait_lines: bool = False,
) -> RunView:
    """Follow a run to its end and return it. Draw it if `console` is a terminal, as `draw` does (default: a panel), and
    `keep` the last drawing.

    Without a terminal, `has_wait_lines` prints a line on stderr for each wait."""
    view = RunView(id=run)
    if console is None or not console.is_terminal:
        await _fold(app, run, view, has_wait_lines)
        return view
    from rich.live import Live

    from .run_panel import RunPanel

    with Live((draw or RunPanel)(view, app.clock), console=console, auto_refresh=False, transient=not keep) as live:
        # Redrawn on this thread: a view must not be read while an event changes it.
        redrawing = asyncio.create_task(_redraw(live))
        try:
            await _fold(app, run, view)
        finally:
            redrawing.cancel()
            await asyncio.wait((redrawing,))
            live.refresh()
    return view


async def follow_until_end(app: App, run: str, after: str | None = None) -> AsyncIterator[Event]:
    """Yield every event after the cursor, then live ones, until the run ends."""
    retry = OutageRetry(f"run {run}")
    row = await retry.call(app.store.run, run)
    kind = row.kind if row is not None else FLOW
    stream = f"{app.settings.namespace}:{kind}:{run}"
    # A run of a dag ends with the events of a flow.
    ends = {f"{prefix}.{status}" for prefix in (kind, FLOW) for status in CLOSED}
    reopened = (f"{kind}.reopened", f"{FLOW}.reopened")
    async with aclosing(app.store.tail(stream, after=after)) as events:  # type: ignore[type-var]
        if await retry.call(_is_over, app, run, stream, after):
            return
        ended = False
        async for event in events:
            yield event
            ended = event.is_unreadable or event.kind in ends or (ended and event.kind not in reopened)
            if ended and await retry.call(_is_over, app, run, stream, event.id):
                return


async def _is_over(app: App, run: str, stream: str, cursor: str | None) -> bool:
    """Return whether no event follows the cursor; a redriven run ends more than once."""
    row = await app.store.run(run)
    return row is not None and row.closed and not await app.store.read(stream, after=cursor, limit=1)


async def _fold(app: App, run: str, view: RunView, has_wait_lines: bool = False) -> None:
    lines = MAX_WAIT_LINES if has_wait_lines else 0
    async with aclosing(follow_until_end(app, run)) as events:  # type: ignore[type-var]
        async for event in events:
            apply_dag(view, event)  # the same as apply_flow, and the events of nodes
            if lines and event.kind in WAIT_STARTED_KINDS:
                lines -= 1
                warn(_wait_line(view, event, app.clock.now_ms()) if lines else "More waits follow.")


def _wait_line(view: RunView, event: Event, now_ms: int) -> str:
    n = (event.meta or {}).get("n", 1)
    name = event.step or "" if n == 1 else f"{event.step}#{n}"
    return f"Step {name} is {describe_waits(view.steps[name], now_ms)}."


async def _redraw(live: Live) -> None:
    while True:
        live.refresh()
        await asyncio.sleep(REDRAW_INTERVAL_S)
