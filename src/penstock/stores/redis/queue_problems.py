"""Problems of single queues and keys: what other programs wrote and cannot be read. None affects a commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ...core.errors import StoreError
from ...ports.unit import ClaimBatch, ClaimRequest
from .resp import translate

log = logging.getLogger("penstock.redis")
REPEAT_AFTER_S = 60.0


class ProblemKind(StrEnum):
    """What became of it, as note_problem in prelude.lua names it."""

    STOPPED = "stopped"  # the queue cannot be claimed from
    REPAIRED = "repaired"  # what could not be read was removed
    ASIDE = "aside"  # a job was taken out of its queue, or a key was moved


class QueueProblem(NamedTuple):
    queue: str
    kind: ProblemKind
    text: str


class QueueProblems:
    """Logs problems of queues: each once a minute, and the end of those that stopped a queue."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._stopped: dict[str, float] = {}  # when each stopped queue is logged again

    def report(self, request: ClaimRequest | None, found: Sequence[QueueProblem]) -> None:
        """Log the problems in the answer to a commit, and to the claim request that it carried."""
        if not found and not self._stopped:
            return
        stopped = {problem.queue for problem in found if problem.kind is ProblemKind.STOPPED}
        for demand in request.queues if request is not None else ():
            if demand.queue not in stopped and self._stopped.pop(demand.queue, None) is not None:
                log.warning("queue %r can be claimed from again", demand.queue)
        for problem in found:
            self._log(problem)

    def _log(self, problem: QueueProblem) -> None:
        queue, kind, text = problem
        if not queue:  # a key of the whole namespace
            aside = "; it was set aside, and `penstock doctor` lists it" if kind is ProblemKind.ASIDE else ""
            log.warning("%s: %s%s", self._where, text, aside)
        elif kind is ProblemKind.REPAIRED:
            log.warning("queue %r: %s", queue, text)
        elif kind is ProblemKind.ASIDE:
            log.error("queue %r: %s; it was set aside. `penstock doctor` lists such jobs", queue, text)
        elif time.monotonic() >= self._stopped.get(queue, 0.0):
            self._stopped[queue] = time.monotonic() + REPEAT_AFTER_S
            log.warning("cannot claim from queue %r, retrying: %s", queue, translate(StoreError(text), self._where))

    def find_error(
        self, request: ClaimRequest, found: Sequence[QueueProblem], claimed: ClaimBatch
    ) -> StoreError | None:
        """Return the error of a claim that no queue could answer; None if one could."""
        stopped = [problem for problem in found if problem.kind is ProblemKind.STOPPED]
        if claimed.claims or len(stopped) < len(request.queues):
            return None
        return translate(StoreError(stopped[0].text), self._where)
