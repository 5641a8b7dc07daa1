"""What one event does: it resolves many waits, or starts many runs."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock import App, Context, flow

from .reading import Meter

BATCH = 500


@flow("waiter")
async def waiter(ctx: Context) -> None:
    await ctx.wait.event("go")


async def _count(app: App, state: str, queue: str = "default") -> int:
    return (await app.queues.counts(queue))[state]


async def waits_resolved(meter: Meter, url: str, size: int) -> None:
    """Runs that wait for one event, from the event to the end of the last one."""
    async with App(url, handlers=[waiter]) as app, app.workers.background(concurrency=50):
        for start in range(0, size, BATCH):
            await asyncio.gather(*(app.start("waiter") for _ in range(min(BATCH, size - start))))
        while await _count(app, "suspended") < size:
            await asyncio.sleep(0.1)
        with meter.each(size):
            await app.emit("go", {})
            while await _count(app, "completed") < size:
                await asyncio.sleep(0.02)


async def runs_started(meter: Meter, url: str, size: int) -> None:
    """Flows that one event starts, from the event to the end of the last run."""

    def make(n: int) -> Any:
        @flow(f"flow{n}", start_on="go")
        async def started(_: Any) -> None: ...

        return started

    async with App(url, handlers=[make(n) for n in range(size)]) as app, app.workers.background(concurrency=50):
        await asyncio.sleep(1)
        with meter.each(size):
            await app.emit("go", {})
            while await _count(app, "completed") < size:
                await asyncio.sleep(0.02)
