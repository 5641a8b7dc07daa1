"""Retrying a first connection: to a server that is starting, perhaps together with this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..core.durations import Duration, format_ms, to_ms
from ..core.errors import StoreUnavailable
from ..core.outage_retry import OutageRetry


async def open_with_retry(subject: str, open: Callable[[], Awaitable[None]], timeout: Duration | None) -> None:
    """Open a connection, retrying for as long as `timeout`. Without one, raise the first error."""
    if timeout is None:
        await open()
        return
    outage_retry = OutageRetry(subject, has_answered=True)
    try:
        async with asyncio.timeout(to_ms(timeout) / 1000):
            await outage_retry.call(open)
    except TimeoutError:
        late = StoreUnavailable(f"{subject}: no answer within {format_ms(to_ms(timeout))}")
        raise outage_retry.problem or late from None
