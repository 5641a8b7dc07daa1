"""Following what must be there: a stream nobody will ever write to would be waited on for ever."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from ..core.events import Event


async def once_known(check: Callable[[], Awaitable[Any]], events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """The events, after `check` has raised what there is to raise. They are closed with this."""
    try:
        await check()
        async for event in events:
            yield event
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
