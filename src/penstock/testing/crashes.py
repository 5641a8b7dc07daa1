"""Simulated crashes: an attempt vanishes as with `kill -9`, and its job runs again when the lease expires."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, NamedTuple

from ..core.errors import PenstockError
from ..ports.unit import Claim
from ..worker.outcomes import Work

WORKER_LOG = "penstock.worker"


class Crashed(PenstockError):
    """A crash that a test planned: nothing of the attempt is recorded."""

    code = "crashed"


class PlannedCrash(NamedTuple):
    """Which start of a step's handler crashes, and when."""

    step: str
    start: int
    after: bool


class CrashPlan:
    """The crashes that have not happened yet."""

    def __init__(self) -> None:
        self._planned: list[PlannedCrash] = []
        self._starts: Counter[str] = Counter()  # claims of each job: a resume after a wait has no attempt number

    def add(self, step: str, start: int, after: bool) -> None:
        self._planned.append(PlannedCrash(step, start, after))

    def apply(self, claim: Claim, work: Work) -> Work:
        """Crash a claim if planned: raise before its handler, or return work that crashes after it."""
        self._starts[claim.job] += 1
        for planned in self._planned:
            if (claim.name, self._starts[claim.job]) == (planned.step, planned.start):
                self._planned.remove(planned)
                if not planned.after:
                    raise Crashed(f"the test crashed start {planned.start} of {claim.name} before its handler")
                return _CrashingWork(work)
        return work


class _CrashingWork:
    """Work whose outcome is never recorded."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __getattr__(self, name: str) -> Any:
        if name in ("on_success", "on_failure", "on_suspension", "on_interruption", "on_return"):
            claim = self._work.claim
            raise Crashed(f"the test crashed attempt {claim.attempt} of {claim.name} after its handler")
        return getattr(self._work, name)


class CrashLogFilter(logging.Filter):
    """Drops the worker's log records about planned crashes."""

    def filter(self, record: logging.LogRecord) -> bool:
        problem = record.exc_info[1] if record.exc_info else None
        return not isinstance(problem, Crashed)

    def install(self) -> None:
        logging.getLogger(WORKER_LOG).addFilter(self)

    def remove(self) -> None:
        logging.getLogger(WORKER_LOG).removeFilter(self)
