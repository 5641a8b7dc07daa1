"""Wait until a condition is true."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from ..core.durations import Duration, to_ms

Condition = Callable[[], Any] | Callable[[], Awaitable[Any]]

MIN_INTERVAL_S = 0.002
MAX_INTERVAL_S = 0.020


async def until(condition: Condition, timeout: Duration = 10) -> Any:
    """Call the condition, sync or async, until it returns something true, and return that.

    Raises AssertionError with the condition's name or source on timeout. Exceptions of the condition propagate.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + to_ms(timeout) / 1000
    interval = MIN_INTERVAL_S
    while True:
        # Read the time before the call: a condition that becomes true at the last moment still counts.
        is_late = loop.time() >= deadline
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if is_late:
            raise AssertionError(
                f"waited {to_ms(timeout) / 1000:g} s for {_describe(condition)}; it last returned {answer!r}"
            )
        await asyncio.sleep(interval)
        interval = min(interval * 1.5, MAX_INTERVAL_S)


def _describe(condition: Condition) -> str:
    """Return the name of a function or the source of a lambda."""
    name = getattr(condition, "__qualname__", repr(condition))
    if not name.endswith("<lambda>"):
        return str(name)
    try:
        lines, _ = inspect.getsourcelines(condition)
    except (OSError, TypeError):
        return str(name)
    return " ".join(line.strip() for line in lines)
