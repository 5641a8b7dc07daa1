"""Detect changed Python files: by `watchfiles` if it is installed, otherwise by polling twice a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ..handlers.reload import find_shared_modules

POLL_INTERVAL_S = 0.5
Stamps = dict[str, tuple[int, int]]  # by path: time of the last change in ns, size


@dataclass(frozen=True)
class Snapshot:
    """The Python files as they are at one moment."""

    own: Stamps  # in the folder
    imported: Stamps  # loaded modules next to the folder
    siblings: frozenset[str]  # every file next to the folder: a missing import may appear there


def watch_files(folder: Path) -> AsyncIterator[list[str]]:
    """Yield the Python files added, changed or removed under a folder since this call.

    Includes files next to the folder that worker files import or fail to import."""
    before = take_snapshot(folder)
    try:
        import watchfiles  # noqa: F401
    except ImportError:
        return poll_files(folder, before)
    return _watch_notified(folder, before)


async def poll_files(folder: Path, before: Snapshot, interval_s: float = POLL_INTERVAL_S) -> AsyncIterator[list[str]]:
    """Yield changed files by comparing the time and size of every file."""
    while True:
        await asyncio.sleep(interval_s)
        now = await asyncio.to_thread(take_snapshot, folder)
        changed = diff_snapshots(before, now)
        if changed:
            yield changed
            now = await asyncio.to_thread(_add_loaded, now, folder)
        before = now


async def _watch_notified(folder: Path, before: Snapshot) -> AsyncIterator[list[str]]:
    from watchfiles import PythonFilter, awatch

    logging.getLogger("watchfiles").setLevel("WARNING")  # it logs every change
    # A notification is only a reason to compare. Changes made before it was ready, or next to the folder, are found at
    # its next timeout.
    notifications = awatch(
        folder, watch_filter=PythonFilter(), step=20, debounce=200, rust_timeout=1000, yield_on_timeout=True
    )
    async for _ in notifications:
        now = await asyncio.to_thread(take_snapshot, folder)
        changed = diff_snapshots(before, now)
        if changed:
            yield changed
            now = await asyncio.to_thread(_add_loaded, now, folder)
        before = now


def take_snapshot(folder: Path) -> Snapshot:
    siblings = frozenset(str(path) for path in folder.parent.glob("*.py"))
    return Snapshot(_stamps(folder.rglob("*.py")), _stamps(find_shared_modules(folder).values()), siblings)


def diff_snapshots(before: Snapshot, now: Snapshot) -> list[str]:
    """Return the files that changed. A module loaded in between counts as unchanged since it was loaded."""
    own = {path for path in before.own.keys() | now.own.keys() if before.own.get(path) != now.own.get(path)}
    both = before.imported.keys() & now.imported.keys()
    imported = {path for path in both if before.imported[path] != now.imported[path]}
    return sorted(own | imported | now.siblings - before.siblings)


def _add_loaded(snapshot: Snapshot, folder: Path) -> Snapshot:
    """Add the modules that a reload has imported for the first time since the snapshot."""
    return replace(snapshot, imported={**_stamps(find_shared_modules(folder).values()), **snapshot.imported})


def _stamps(paths: Iterable[Path]) -> Stamps:
    stamps: Stamps = {}
    for path in paths:
        try:
            stat = path.stat()
        except OSError:  # removed in the meantime
            continue
        stamps[str(path)] = stat.st_mtime_ns, stat.st_size
    return stamps
