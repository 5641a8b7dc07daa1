"""Folders that are built once and used by every test process: locked while one builds, published by rename.

They live in `.cache` of the clone, so that `make clean` and the clone's end are theirs, too.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

CACHE = Path(__file__).resolve().parents[1] / ".cache"


def install(name: str, build: Callable[[Path], None], *, within: Path | None = None) -> Path:
    """Return the folder `name`; build it first where it is missing.

    `build` is given an empty folder. It gets its name only when it is complete: a process that dies or fails on the way leaves
    nothing that looks finished, and the next one starts over.
    """
    place = (CACHE if within is None else within) / name
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the system releases it when the process dies
        if not place.exists():
            draft = place.with_name(f"{place.name}.partial")
            shutil.rmtree(draft, ignore_errors=True)  # of a process that died here
            draft.mkdir()
            build(draft)
            draft.rename(place)
    return place
