"""Quarantine: a job that may be crashing its workers runs alone before it is given up.

When a worker dies, or a handler holds the interpreter for longer than a lease, a crash is counted against every job of
that worker, and other workers claim all of them. A job that does this each time would take the same neighbours down
with it until all of them are dead letters. So after `max_crashes` a job runs without neighbours, and a memo records
that before its handler is called. Only a crash during such an attempt proves that the job is the cause. Any other may
be a neighbour's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..ports.unit import DELIVERIES, Claim, Memo


def is_given_up(claim: Claim, max_crashes: int) -> bool:
    """Return whether the job has crashed workers too often, the last one while it ran alone.

    The engine's own jobs crash no worker. Giving up on one would leave a step suspended for ever."""
    if claim.crashes <= max_crashes or claim.queue == DELIVERIES:
        return False
    return max_crashes == 0 or _memo_name(claim.job, claim.crashes - 1) in claim.memos


def alone_memo(claim: Claim) -> Memo:
    """Return the memo that records that a job is about to run alone."""
    return Memo(claim.scope, _memo_name(claim.job, claim.crashes), b"true")


def _memo_name(job: str, crashes: int) -> str:
    return f"~alone#{job}#{crashes}"


class Quarantine:
    """Holds at most one suspect; while it does, the worker claims nothing else."""

    def __init__(self, max_crashes: int, timeout_s: float) -> None:
        self._max_crashes = max_crashes
        self._timeout_s = timeout_s
        self.suspect: str | None = None  # the token of the job that runs alone
        self._changed = asyncio.Event()

    def concerns(self, claim: Claim) -> bool:
        """Return whether the job may only run alone."""
        is_suspect = 0 < self._max_crashes <= claim.crashes and claim.queue != DELIVERIES
        return is_suspect and not is_given_up(claim, self._max_crashes)

    async def enter(self, claim: Claim, active: Callable[[], int], is_stopping: Callable[[], bool]) -> bool:
        """Wait until the suspect is alone, at most for the timeout. Return False if it must be released instead."""
        if self.suspect is not None:
            return False  # one suspect at a time: a second one would share its crash
        self.suspect = claim.token
        try:
            async with asyncio.timeout(self._timeout_s):
                while active() > 1 and not is_stopping():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False  # a neighbour may wait for a job that this worker does not claim meanwhile
        return not is_stopping()

    def leave(self, claim: Claim) -> None:
        """Note that an attempt ended, the suspect's or a neighbour's."""
        if self.suspect is None:
            return
        if self.suspect == claim.token:
            self.suspect = None
        self._changed.set()

    def wake(self) -> None:
        """Check again: the worker is stopping."""
        self._changed.set()
