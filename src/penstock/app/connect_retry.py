"""Opening what may not be there yet: a server that is being started, perhaps together with whoever needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..core.durations import Duration, format_ms, to_ms
from ..core.errors import StoreUnavailable
from ..core.outage_retry import OutageRetry


async def opened(what: str, open: Callable[[], Awaitable[None]], patience: Duration | None) -> None:
    """Opens it, and tries again for as long as there is patience; without any, what is wrong is raised at once."""
    if patience is None:
        await open()
        return
    asking = OutageRetry(what, has_answered=True)
    try:
        async with asyncio.timeout(to_ms(patience) / 1000):
            await asking.call(open)
    except TimeoutError:
        late = StoreUnavailable(f"{what}: no answer within {format_ms(to_ms(patience))}")
        raise asking.problem or late from None
