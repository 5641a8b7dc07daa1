"""Waiting with a timeout, through outages of the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..core.durations import Duration, to_ms
from ..core.errors import WaitTimeout
from ..core.outage_retry import OutageRetry


@asynccontextmanager
async def deadline(subject: str, timeout: Duration | None, queues: str) -> AsyncIterator[OutageRetry]:
    """Yield a retry policy for reads; raise WaitTimeout with the likely reason when the time is up."""
    outage_retry = OutageRetry(f"the end of {subject}")
    try:
        async with asyncio.timeout(to_ms(timeout) / 1000 if timeout is not None else None):
            yield outage_retry
    except TimeoutError:
        if outage_retry.problem is not None:
            message = f"{subject} did not end within {timeout}; the store does not answer: {outage_retry.problem}"
            raise WaitTimeout(message) from outage_retry.problem
        raise WaitTimeout(f"{subject} did not end within {timeout}: is a worker running for {queues}?") from None
