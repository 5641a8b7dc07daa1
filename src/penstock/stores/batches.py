"""Delete in batches, so that no commit waits long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

BATCH_SIZE = 500  # 10 to 40 ms of a server
MAX_LEASE_MS = 3_650 * 86_400_000  # no worker has a longer lease: one that ends later is damaged


class SweepBatch:
    """Counts what a sweep removes. Each kind has the same limit; `others` are the rows of small tables."""

    KINDS = ("runs", "jobs", "events", "states", "others")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.reset()

    def reset(self) -> None:
        """Count from zero: nothing of what was counted was removed."""
        self.removed = dict.fromkeys(self.KINDS, 0)

    def room(self, kind: str) -> int:
        """Return how many more of a kind may be removed."""
        return max(self._limit - self.removed[kind], 0)

    def add(self, kind: str, count: int) -> None:
        """Count what was removed."""
        self.removed[kind] += count


async def in_batches(remove: Callable[[int], Awaitable[int]]) -> int:
    """Call `remove` with a limit until it removes less than that, and return the total."""
    total = 0
    while True:
        removed = await remove(BATCH_SIZE)
        total += removed
        if removed < BATCH_SIZE:
            return total
