"""Opening the App of a command that works: its server may be started together with it, or be on its way back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..app import App
from .stopping import on_stop

PATIENCE = "1m"


@asynccontextmanager
async def begun(app: App) -> AsyncIterator[bool]:
    """The App is open inside. A server that cannot be reached is waited for; False if a signal came before it was."""
    opening = asyncio.create_task(app.open(patience=PATIENCE))
    with on_stop(opening.cancel):
        await asyncio.wait((opening,))
    if opening.cancelled():
        yield False
        return
    opening.result()
    try:
        yield True
    finally:
        await app.close()
