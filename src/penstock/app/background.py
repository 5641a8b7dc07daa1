"""What goes on beside a worker. Nobody looks at these tasks: if one failed, what it does would just not happen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger("penstock.worker")
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds; what fails for good is not to fill the log


async def kept_up(run: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
    """Runs until it is cancelled or done, and again if it fails."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await run()
        except Exception:
            log.exception("%s failed and is begun anew", what)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)


def in_background(run: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
    """A task that is kept up, by its name."""
    return asyncio.create_task(kept_up(run, name.removeprefix("penstock-")), name=name)
