"""A job that may be killing its workers is given its last chance alone.

Every job that was running when a worker died has a crash counted against it, and they all come back together: a job
that kills its worker each time would take the same neighbours with it until they are all called dead. So before the
crash that would be one too many, a job runs with no neighbour: if the worker dies then, there is no doubt whose fault
it is, and if it does not, the job was a bystander and is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..ports.unit import Claim


class Quarantine:
    """Holds at most one suspect at a time; while it does, the worker takes no other work."""

    def __init__(self, max_crashes: int, patience: float) -> None:
        self._max_crashes = max_crashes
        self._patience = patience
        self._suspect: str | None = None
        self._changed = asyncio.Event()

    @property
    def busy(self) -> bool:
        return self._suspect is not None

    def concerns(self, claim: Claim) -> bool:
        """Whether one more crash would be the job's last."""
        return 0 < claim.crashes == self._max_crashes

    async def enter(self, claim: Claim, in_hand: Callable[[], int], stopping: Callable[[], bool]) -> bool:
        """Waits until the suspect is alone, though not for ever; False when it had better go back to its queue."""
        if self._suspect is not None:
            return False  # one after the other: the next would share the first one's fate
        self._suspect = claim.token
        try:
            async with asyncio.timeout(self._patience):
                while in_hand() > 1 and not stopping():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        return not stopping()

    def left(self, claim: Claim) -> None:
        """An attempt is over, whichever it was."""
        if self._suspect is None:
            return
        if self._suspect == claim.token:
            self._suspect = None
        self._changed.set()

    def wake(self) -> None:
        """Looks again: the worker is to stop."""
        self._changed.set()
