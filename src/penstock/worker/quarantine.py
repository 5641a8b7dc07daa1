"""Quarantine: a job that may be crashing its workers gets its last attempt alone.

When a worker dies, a crash is counted against every job it was running, and all of them are claimed again together. A
job that crashes its worker each time would take the same neighbours down with it until all of them are dead-lettered.
So before the crash that would be one too many, a job runs without neighbours. If the worker dies then, the job is the
cause. If it does not, the job was a bystander and is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..ports.unit import Claim


class Quarantine:
    """Holds at most one suspect; while it does, the worker claims nothing else."""

    def __init__(self, max_crashes: int, timeout_s: float) -> None:
        self._max_crashes = max_crashes
        self._timeout_s = timeout_s
        self._suspect: str | None = None
        self._changed = asyncio.Event()

    @property
    def is_busy(self) -> bool:
        return self._suspect is not None

    def concerns(self, claim: Claim) -> bool:
        """Return whether one more crash would be the job's last."""
        return 0 < claim.crashes == self._max_crashes

    async def enter(self, claim: Claim, active: Callable[[], int], is_stopping: Callable[[], bool]) -> bool:
        """Wait until the suspect is alone, at most for the timeout. Return False if it should be released instead."""
        if self._suspect is not None:
            return False  # one suspect at a time: a second one would share its crash
        self._suspect = claim.token
        try:
            async with asyncio.timeout(self._timeout_s):
                while active() > 1 and not is_stopping():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        return not is_stopping()

    def leave(self, claim: Claim) -> None:
        """Note that an attempt ended, the suspect's or a neighbour's."""
        if self._suspect is None:
            return
        if self._suspect == claim.token:
            self._suspect = None
        self._changed.set()

    def wake(self) -> None:
        """Check again: the worker is stopping."""
        self._changed.set()
