"""Noticing that files changed: told by the system if `watchfiles` is installed, else by looking twice a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

EVERY = 0.5  # seconds between two looks
Stamps = dict[str, tuple[int, int]]


def changes(folder: Path) -> AsyncIterator[list[str]]:
    """The Python files that were added, changed or removed under a folder since this was called, whenever some were."""
    before = stamps(folder)
    try:
        import watchfiles  # noqa: F401
    except ImportError:
        return polled(folder, before)
    return _told(folder, before)


async def _told(folder: Path, before: Stamps) -> AsyncIterator[list[str]]:
    from watchfiles import PythonFilter, awatch

    logging.getLogger("watchfiles").setLevel("WARNING")  # it counts every change aloud
    # It says when to look. What changed before it was ready is seen at its first pause.
    told = awatch(folder, watch_filter=PythonFilter(), step=20, debounce=200, rust_timeout=1000, yield_on_timeout=True)
    async for _ in told:
        now = await asyncio.to_thread(stamps, folder)
        changed = differing(before, now)
        before = now
        if changed:
            yield changed


async def polled(folder: Path, before: Stamps, every: float = EVERY) -> AsyncIterator[list[str]]:
    """The same by looking at the time and size of every file."""
    while True:
        await asyncio.sleep(every)
        now = await asyncio.to_thread(stamps, folder)
        changed = differing(before, now)
        before = now
        if changed:
            yield changed


def differing(before: Stamps, now: Stamps) -> list[str]:
    """The files that are not as they were."""
    return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))


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
