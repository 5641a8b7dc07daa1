"""Noticing that files changed: told by the system if `watchfiles` is installed, else by looking twice a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

EVERY = 0.5  # seconds between two looks
Stamps = dict[str, tuple[int, int]]


def changes(folder: Path) -> AsyncIterator[list[str]]:
    """The Python files that were added, changed or removed under a folder, whenever some were."""
    try:
        import watchfiles  # noqa: F401
    except ImportError:
        return polled(folder)
    return _told(folder)


async def _told(folder: Path) -> AsyncIterator[list[str]]:
    from watchfiles import PythonFilter, awatch

    logging.getLogger("watchfiles").setLevel("WARNING")  # it counts every change aloud
    async for found in awatch(folder, watch_filter=PythonFilter(), step=20, debounce=200):
        yield sorted({path for _, path in found})


async def polled(folder: Path, every: float = EVERY) -> AsyncIterator[list[str]]:
    """The same by looking at the time and size of every file."""
    before = await asyncio.to_thread(stamps, folder)
    while True:
        await asyncio.sleep(every)
        now = await asyncio.to_thread(stamps, folder)
        changed = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
        before = now
        if changed:
            yield changed


def stamps(folder: Path) -> Stamps:
    """When each file was changed last, and its size."""
    found: Stamps = {}
    for path in folder.rglob("*.py"):
        try:
            about = path.stat()
        except OSError:  # it went away meanwhile
            continue
        found[str(path)] = about.st_mtime_ns, about.st_size
    return found
