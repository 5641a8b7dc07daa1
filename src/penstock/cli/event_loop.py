"""The event loop that a worker runs on: uvloop where it is installed, asyncio's own otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs until the work is done, as asyncio.run does."""
    try:
        import uvloop
    except ImportError:  # an extra, and not to be had on every system
        return asyncio.run(work)
    return uvloop.run(work)
