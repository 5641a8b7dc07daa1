"""Waiting for something to become true, for as long as it takes and no longer."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from ..core.durations import Duration, to_ms

Condition = Callable[[], Any] | Callable[[], Awaitable[Any]]

FIRST_PAUSE = 0.002
LONGEST_PAUSE = 0.020


async def until(condition: Condition, timeout: Duration = 10) -> Any:
    """Asks again and again until the condition, sync or async, gives something true, and gives that back.

    An AssertionError says what was waited for. An exception of the condition is raised as it is.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + to_ms(timeout) / 1000
    pause = FIRST_PAUSE
    while True:
        # The time is read before asking: a condition that comes true at the last moment still counts.
        late = loop.time() >= deadline
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if late:
            raise AssertionError(f"waited {to_ms(timeout) / 1000:g} s for {_told(condition)}; it last gave {answer!r}")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE)


def _told(condition: Condition) -> str:
    """The condition's own words: a named function's name, a lambda's source."""
    name = getattr(condition, "__qualname__", repr(condition))
    if not name.endswith("<lambda>"):
        return str(name)
    try:
        lines, _ = inspect.getsourcelines(condition)
    except (OSError, TypeError):
        return str(name)
    return " ".join(line.strip() for line in lines)
