"""Waiting for the end of a run or a job, for as long as the caller allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..core.durations import Duration, to_ms
from ..core.errors import WaitTimeout
from ..core.patience import Patience


@asynccontextmanager
async def waited(what: str, timeout: Duration | None, queues: str) -> AsyncIterator[Patience]:
    """The patience to ask with; when the time is up, an error that says what it was spent on."""
    patience = Patience(f"the end of {what}")
    try:
        async with asyncio.timeout(to_ms(timeout) / 1000 if timeout is not None else None):
            yield patience
    except TimeoutError:
        if patience.problem is not None:
            message = f"{what} has not been seen to end after {timeout}, the store does not answer: {patience.problem}"
            raise WaitTimeout(message) from patience.problem
        raise WaitTimeout(f"{what} has not ended after {timeout}: is a worker running for {queues}?") from None
