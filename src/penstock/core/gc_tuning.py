"""Fewer runs of Python's garbage collector while a worker runs, or while many commits are waited for."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# An attempt allocates some hundred objects that live until its commit. With its default threshold, Python runs a
# collection several times for each batch, over objects that are all in use.
GC_THRESHOLD_OBJECTS = 20_000
_DEFAULT_THRESHOLDS = (700, 2000)  # up to 3.12, since 3.13; the application chose any other number

_previous: list[tuple[int, int, int]] = []  # one entry for each running worker: the threshold to restore


@contextmanager
def reduce_collections() -> Iterator[None]:
    """Raise the collector's threshold in this process, unless the application has set its own."""
    current = gc.get_threshold()
    if current[0] not in _DEFAULT_THRESHOLDS and not _previous:
        yield
        return
    if not _previous:
        gc.set_threshold(GC_THRESHOLD_OBJECTS, *current[1:])
    _previous.append(_previous[0] if _previous else current)
    try:
        yield
    finally:
        restored = _previous.pop()
        if not _previous and gc.get_threshold()[0] == GC_THRESHOLD_OBJECTS:
            gc.set_threshold(*restored)
