"""Functions that race: called side by side, until the first has ended or their time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """How a function ended, of which nothing is recorded yet."""

    at: int
    value: Any = None
    failure: Exception | None = None


Racer = Callable[[], Coroutine[Any, Any, Outcome]]


async def side_by_side(racers: Mapping[str, Racer], seconds: float | None) -> dict[str, Outcome]:
    """Those that ended first, mostly one, or none if the time is over before. The others are stopped."""
    tasks = {name: asyncio.create_task(race()) for name, race in racers.items()}
    try:
        done, _ = await asyncio.wait(tasks.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _stop(tasks.values())
    return {name: task.result() for name, task in tasks.items() if task in done}


async def _stop(tasks: Iterable[asyncio.Task[Outcome]]) -> None:
    """Cancels what still runs and waits for its end: it may have something to tidy up. A thread cannot be cancelled,
    it is left to itself."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # asyncio complains of exceptions nobody looked at
