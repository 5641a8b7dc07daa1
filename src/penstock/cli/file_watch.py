"""Noticing that files changed: told by the system if `watchfiles` is installed, else by looking twice a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ..handlers.reload import find_shared_modules

EVERY = 0.5  # seconds between two looks
Stamps = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Look:
    """The Python files as they are at one moment: when each was changed last, and its size."""

    own: Stamps  # of the folder
    imported: Stamps  # of the modules beside it that are loaded
    near: frozenset[str]  # all that lie right beside it: one that is missing may be made


def changes(folder: Path) -> AsyncIterator[list[str]]:
    """The Python files that were added, changed or removed under a folder since this was called, whenever some were.

    Also those beside it that worker files import, or may want to."""
    before = look(folder)
    try:
        import watchfiles  # noqa: F401
    except ImportError:
        return polled(folder, before)
    return _told(folder, before)


async def _told(folder: Path, before: Look) -> AsyncIterator[list[str]]:
    from watchfiles import PythonFilter, awatch

    logging.getLogger("watchfiles").setLevel("WARNING")  # it counts every change aloud
    # It says when to look. What changed before it was ready, or beside the folder, is seen at its next pause.
    told = awatch(folder, watch_filter=PythonFilter(), step=20, debounce=200, rust_timeout=1000, yield_on_timeout=True)
    async for _ in told:
        now = await asyncio.to_thread(look, folder)
        changed = differing(before, now)
        if changed:
            yield changed
            now = await asyncio.to_thread(_with_loaded, now, folder)
        before = now


async def polled(folder: Path, before: Look, every: float = EVERY) -> AsyncIterator[list[str]]:
    """The same by looking at the time and size of every file."""
    while True:
        await asyncio.sleep(every)
        now = await asyncio.to_thread(look, folder)
        changed = differing(before, now)
        if changed:
            yield changed
            now = await asyncio.to_thread(_with_loaded, now, folder)
        before = now


def differing(before: Look, now: Look) -> list[str]:
    """The files that are not as they were. A module that was loaded meanwhile is as it was when it was loaded."""
    own = {path for path in before.own.keys() | now.own.keys() if before.own.get(path) != now.own.get(path)}
    both = before.imported.keys() & now.imported.keys()
    return sorted(own | {path for path in both if before.imported[path] != now.imported[path]} | now.near - before.near)


def look(folder: Path) -> Look:
    """The files as they are now."""
    near = frozenset(str(path) for path in folder.parent.glob("*.py"))
    return Look(_stamps(folder.rglob("*.py")), _stamps(find_shared_modules(folder).values()), near)


def _with_loaded(seen: Look, folder: Path) -> Look:
    """What was seen, and the modules that a reload since then has loaded for the first time."""
    return replace(seen, imported={**_stamps(find_shared_modules(folder).values()), **seen.imported})


def _stamps(paths: Iterable[Path]) -> Stamps:
    found: Stamps = {}
    for path in paths:
        try:
            about = path.stat()
        except OSError:  # it went away meanwhile
            continue
        found[str(path)] = about.st_mtime_ns, about.st_size
    return found
