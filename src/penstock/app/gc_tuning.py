"""How often Python looks for garbage in cycles while a worker runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects made between two looks. An attempt makes some hundred that live until its commit: at its own threshold
# Python looks several times for each batch, at objects that are all in use.
OBJECTS = 20_000
_PYTHONS_OWN = (700, 2000)  # up to 3.12, since 3.13; any other number is somebody's choice

_before: list[tuple[int, int, int]] = []  # an entry for each worker that runs; the first is what to go back to


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Has Python look less often as long as a worker of this process runs. A threshold that was chosen is kept."""
    before = gc.get_threshold()
    if before[0] not in _PYTHONS_OWN and not _before:
        yield
        return
    if not _before:
        gc.set_threshold(OBJECTS, *before[1:])
    _before.append(_before[0] if _before else before)
    try:
        yield
    finally:
        back = _before.pop()
        if not _before and gc.get_threshold()[0] == OBJECTS:
            gc.set_threshold(*back)
