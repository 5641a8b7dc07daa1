"""One piece of writing: units, then claims, then their events, inside a transaction that is open already."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from ...ports.unit import ClaimBatch, ClaimRequest, CommitReply, Unit
from .append import Appender
from .claim import Claimer
from .commit import Committer


def transact(
    cursor: apsw.Cursor, now: int, units: Sequence[Unit], ask: ClaimRequest | None, touched: set[str]
) -> CommitReply:
    """Applies units in order and hands out the work asked for; `touched` collects the topics to signal afterwards."""
    appender = Appender(cursor, now, touched)
    committer = Committer(cursor, now, touched, appender)
    receipts = [committer.apply(unit) for unit in units]
    committer.keeper.tidy()
    work = ClaimBatch()
    if ask is not None:
        claimer = Claimer(cursor, now, appender)
        work = claimer.claim(ask)
        # Whoever asks has just been given all there is of these: waking it for the same jobs would be for nothing.
        touched.difference_update(f"queue:{queue}" for queue in claimer.emptied)
    appender.flush()
    return CommitReply(receipts, work)
