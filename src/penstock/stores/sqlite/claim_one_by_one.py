"""Claim one job at a time, after a claim has failed: a job that cannot be claimed fails alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from ...core.errors import UnreadableRecord
from ...ports.unit import Claim, ClaimRequest
from . import order_keys
from .claim import Claimer
from .events import Appender
from .statements import COMMIT as SQL
from .statements import FAILED

log = logging.getLogger("penstock.store")


class CarefulClaimer(Claimer):
    """Claims each job in a savepoint of its own."""

    def __init__(self, cursor: apsw.Cursor, now: int, appender: Appender) -> None:
        super().__init__(cursor, now, appender)
        self._appender = appender
        appender.flush()  # the events of the units: what follows may be rolled back

    def _claim_one(
        self, queue: str, row: Sequence[Any], memos: dict[str, bytes], request: ClaimRequest
    ) -> Claim | None:
        self._cursor.execute("SAVEPOINT one_claim")
        try:
            claim = super()._claim_one(queue, row, memos, request)
            self._appender.flush()
        except Exception as problem:
            self._cursor.execute("ROLLBACK TO one_claim")
            self._appender.discard()
            self._fail(queue, row, problem)
            claim = None
        self._cursor.execute("RELEASE one_claim")
        return claim

    def _fail(self, queue: str, row: Sequence[Any], problem: Exception) -> None:
        """Fail a job without running it, so that it is not claimed again."""
        pk, id = row[0], row[7]
        reason = f"job {id!r} cannot be claimed: {type(problem).__name__}: {problem}"
        log.error("%s; it has failed", reason)
        error = {"error": reason, "name": UnreadableRecord.__name__, "code": UnreadableRecord.code, "undecided": True}
        found = self._cursor.execute(SQL.fail_unclaimed_job, (self._now, msgspec.json.encode(error), pk)).fetchall()
        for (order_key,) in found:
            self._cursor.execute(SQL.count_finished, (queue, FAILED, 1))
            if order_key is not None:
                order_keys.release_head(self._cursor, queue, str(order_key), self._now, set())
