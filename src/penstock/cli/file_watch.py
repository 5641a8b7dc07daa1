"""Detect changed worker files: by `watchfiles` if it is installed, otherwise by polling twice a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ..handlers.reload import find_shared_modules
from ..ports.script_files import SCRIPT_SUFFIXES

POLL_INTERVAL_S = 0.5
Stamps = dict[str, tuple[int, int]]  # by path: time of the last change in ns, size
Sources = Callable[[], Iterable[Path]]
"""Returns the files that TypeScript and JavaScript worker files import."""


@dataclass(frozen=True)
class FolderSnapshot:
    """The source files as they are at one moment."""

    own: Stamps  # in the folder
    imported: Stamps  # loaded modules next to the folder
    siblings: frozenset[str]  # every file next to the folder: a missing import may appear there


def watch_files(folder: Path, sources: Sources = tuple) -> AsyncIterator[list[str]]:
    """Yield the Python, TypeScript and JavaScript files added, changed or removed under a folder since this call.

    Includes files next to the folder that worker files import or fail to import."""
    before = take_snapshot(folder, sources)
    try:
        import watchfiles  # noqa: F401
    except ImportError:
        return poll_files(folder, before, sources=sources)
    return _watch_notified(folder, before, sources)


async def poll_files(
    folder: Path, before: FolderSnapshot, interval_s: float = POLL_INTERVAL_S, sources: Sources = tuple
) -> AsyncIterator[list[str]]:
    """Yield changed files by comparing the time and size of every file."""
    while True:
        await asyncio.sleep(interval_s)
        now = await asyncio.to_thread(take_snapshot, folder, sources)
        changed = diff_snapshots(before, now)
        if changed:
            yield changed
            now = await asyncio.to_thread(_add_loaded, now, folder, sources)
        before = now


async def _watch_notified(folder: Path, before: FolderSnapshot, sources: Sources) -> AsyncIterator[list[str]]:
    from watchfiles import DefaultFilter, awatch

    logging.getLogger("watchfiles").setLevel("WARNING")  # it logs every change
    # A notification is only a reason to compare. Changes made before it was ready, or next to the folder, are found at
    # its next timeout.
    notifications = awatch(
        folder, watch_filter=DefaultFilter(), step=20, debounce=200, rust_timeout=1000, yield_on_timeout=True
    )
    async for _ in notifications:
        now = await asyncio.to_thread(take_snapshot, folder, sources)
        changed = diff_snapshots(before, now)
        if changed:
            yield changed
            now = await asyncio.to_thread(_add_loaded, now, folder, sources)
        before = now


def take_snapshot(folder: Path, sources: Sources = tuple) -> FolderSnapshot:
    siblings = frozenset(str(path) for path in folder.parent.glob("*.py"))
    return FolderSnapshot(_stamps(_own_files(folder)), _imported(folder, sources), siblings)


def _own_files(folder: Path) -> Iterable[Path]:
    suffixes = {".py", *SCRIPT_SUFFIXES}
    for path in folder.rglob("*"):
        if path.suffix in suffixes and "node_modules" not in path.parts:
            yield path


def _imported(folder: Path, sources: Sources) -> Stamps:
    others = (path for path in sources() if not path.is_relative_to(folder))
    return _stamps((*find_shared_modules(folder).values(), *others))


def diff_snapshots(before: FolderSnapshot, now: FolderSnapshot) -> list[str]:
    """Return the files that changed. A module loaded in between counts as unchanged since it was loaded."""
    own = {path for path in before.own.keys() | now.own.keys() if before.own.get(path) != now.own.get(path)}
    both = before.imported.keys() & now.imported.keys()
    imported = {path for path in both if before.imported[path] != now.imported[path]}
    return sorted(own | imported | now.siblings - before.siblings)


def _add_loaded(snapshot: FolderSnapshot, folder: Path, sources: Sources) -> FolderSnapshot:
    """Add the modules that a reload has imported for the first time since the snapshot."""
    return replace(snapshot, imported={**_imported(folder, sources), **snapshot.imported})


def _stamps(paths: Iterable[Path]) -> Stamps:
    stamps: Stamps = {}
    for path in paths:
        try:
            stat = path.stat()
        except OSError:  # removed in the meantime
            continue
        stamps[str(path)] = stat.st_mtime_ns, stat.st_size
    return stamps
