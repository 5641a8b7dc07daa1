"""Run the loops of a bridge and stop them gracefully: what is in hand ends first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

log = logging.getLogger("penstock.messaging")
Loop = Callable[[asyncio.Event], Awaitable[None]]
"""Moves messages until the event is set. Cancelling it gives back what it has in hand."""


async def run_loops(loops: Sequence[Loop], grace_s: float, name: str) -> None:
    """Run loops until cancelled. Then let each end what it has in hand, and cancel those that take longer than the
    grace."""
    stopping = asyncio.Event()
    tasks = [asyncio.ensure_future(loop(stopping)) for loop in loops]
    for task in tasks:
        task.set_name(name) if isinstance(task, asyncio.Task) else None
    if not tasks:
        return
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    except asyncio.CancelledError:
        stopping.set()
        await asyncio.wait(tasks, timeout=grace_s)
        raise
    finally:
        await _cancel(tasks)
    for task in done:
        task.result()  # raises what ended a loop


async def _cancel(tasks: Sequence[asyncio.Future[None]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            log.warning("a consumer ended with an error: %s", result)


class Consumption:
    """Messages that `consume` hands to a function, until it is closed."""

    def __init__(self, queue: str, loops: Sequence[Loop], grace_s: float) -> None:
        self.queue = queue
        self._task = asyncio.create_task(run_loops(loops, grace_s, "penstock-consume"), name="penstock-consume")

    @property
    def is_running(self) -> bool:
        return not self._task.done()

    async def close(self) -> None:
        """Stop: the messages in hand are completed first."""
        self._task.cancel()
        await asyncio.wait((self._task,))
