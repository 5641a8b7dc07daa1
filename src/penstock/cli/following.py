"""A run's events until the run has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from ..app import App
from ..core.events import Event
from ..core.patience import Patience

_ENDS = frozenset(("flow.completed", "flow.failed", "flow.compensated", "flow.cancelled"))


async def until_ended(app: App, run: str, after: str | None = None) -> AsyncIterator[Event]:
    """Every event after the cursor, then live, up to the end of the run."""
    stream = f"{app.settings.namespace}:flow:{run}"
    patience = Patience(f"run {run}")
    async with aclosing(app.events.subscribe(stream, after=after)) as events:  # type: ignore[type-var]
        if await patience.of(_is_over, app, run, stream, after):
            return
        ended = False
        async for event in events:
            yield event
            ended = event.kind in _ENDS or (ended and event.kind != "flow.reopened")
            if ended and await patience.of(_is_over, app, run, stream, event.id):
                return


async def _is_over(app: App, run: str, stream: str, cursor: str | None) -> bool:
    """Whether nothing comes after the cursor any more; a redriven run ends more than once."""
    row = await app.store.run(run)
    return row is not None and row.closed and not await app.store.read(stream, after=cursor, limit=1)
