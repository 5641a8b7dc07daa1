"""Fewer runs of Python's garbage collector while a worker runs, or while many commits are waited for."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# An attempt allocates some hundred objects that live until its commit. With its default threshold, Python runs a
# collection several times for each batch, over objects that are all in use.
GC_THRESHOLD_OBJECTS = 20_000
_DEFAULT_THRESHOLDS = (700, 2000)  # up to 3.12, since 3.13; the application chose any other number

NEVER = 10_000  # so many collections of young objects before the older ones are looked through
_previous: list[tuple[int, int, int]] = []  # one entry for each that asked for it: the threshold to restore
_young_only: list[bool] = []


@contextmanager
def reduce_collections(*, young_only: bool = False) -> Iterator[None]:
    """Raise the collector's threshold in this process, unless the application has set its own. With `young_only`, it
    looks through no older objects meanwhile: use it for a short time."""
    current = gc.get_threshold()
    if current[0] not in _DEFAULT_THRESHOLDS and not _previous:
        yield
        return
    _previous.append(_previous[0] if _previous else current)
    _young_only.append(young_only)
    _apply(_previous[0], is_first=len(_previous) == 1)
    try:
        yield
    finally:
        restored = _previous.pop()
        _young_only.remove(young_only)
        if not _previous:
            if gc.get_threshold()[0] == GC_THRESHOLD_OBJECTS:
                gc.set_threshold(*restored)
        else:
            _apply(restored)


def _apply(own: tuple[int, int, int], *, is_first: bool = False) -> None:
    if is_first or gc.get_threshold()[0] == GC_THRESHOLD_OBJECTS:  # otherwise the application has changed it
        gc.set_threshold(GC_THRESHOLD_OBJECTS, NEVER if any(_young_only) else own[1], own[2])
