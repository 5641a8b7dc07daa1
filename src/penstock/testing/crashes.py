"""Crashes a test asks for: an attempt vanishes as with `kill -9`, and its job comes again when its lease is over."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from ..core.errors import PenstockError
from ..ports.unit import Claim
from ..worker.outcomes import Work

WORKER_LOG = "penstock.worker"


class Crashed(PenstockError):
    """A crash a test asked for: nothing of the attempt is recorded."""

    code = "crashed"


class Planned(NamedTuple):
    """Which attempt crashes, and when."""

    step: str
    attempt: int
    after: bool


class Crashes:
    """The crashes that are still to come."""

    def __init__(self) -> None:
        self._planned: list[Planned] = []

    def plan(self, step: str, attempt: int, after: bool) -> None:
        self._planned.append(Planned(step, attempt, after))

    def strike(self, claim: Claim, work: Work) -> Work:
        """The work of a claim, doomed if it is to crash after its handler; raises if before."""
        for planned in self._planned:
            if (claim.name, claim.attempt) == (planned.step, planned.attempt):
                self._planned.remove(planned)
                if not planned.after:
                    raise Crashed(f"the test let attempt {claim.attempt} of {claim.name} crash before it ran")
                return _Doomed(work)
        return work

    def left(self) -> list[str]:
        """Those that never came, in words."""
        return [f"attempt {planned.attempt} of {planned.step}" for planned in self._planned]


class _Doomed:
    """Work whose end is never recorded."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __getattr__(self, name: str) -> Any:
        if name in ("succeeded", "failed", "suspended", "stopped", "limited"):
            claim = self._work.claim
            raise Crashed(f"the test let attempt {claim.attempt} of {claim.name} crash after it ran")
        return getattr(self._work, name)


class Quiet(logging.Filter):
    """Leaves out what the worker says of crashes that were asked for."""

    def filter(self, record: logging.LogRecord) -> bool:
        problem = record.exc_info[1] if record.exc_info else None
        return not isinstance(problem, Crashed)

    def begin(self) -> None:
        logging.getLogger(WORKER_LOG).addFilter(self)

    def end(self) -> None:
        logging.getLogger(WORKER_LOG).removeFilter(self)
