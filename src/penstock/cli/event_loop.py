"""The event loop of a worker: uvloop if it is installed, otherwise asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, as asyncio.run does."""
    try:
        import uvloop
    except ImportError:  # an optional extra, not available on every system
        return asyncio.run(main)
    return uvloop.run(main)
