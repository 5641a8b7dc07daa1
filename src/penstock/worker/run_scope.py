"""The scope of a worker that works on some runs only: those runs, and what their handlers start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..ports.unit import ClaimFilter
from .outcomes import Launch


class WorkScope:
    """The runs and jobs that a worker may claim. It grows while handlers start work."""

    def __init__(self, runs: Iterable[str], jobs: Iterable[str] = ()) -> None:
        self._own = tuple(runs)
        self._runs: dict[str, None] = dict.fromkeys(self._own)
        self._jobs: dict[str, None] = dict.fromkeys(jobs)

    @property
    def filter(self) -> ClaimFilter:
        return ClaimFilter(tuple(self._runs), tuple(self._jobs))

    @property
    def launched(self) -> ClaimFilter:
        """What the handlers have started so far."""
        return ClaimFilter(tuple(run for run in self._runs if run not in self._own), tuple(self._jobs))

    def rename(self, routed: Mapping[str, str]) -> None:
        """Add what a route starts in place of the ids that stood for it."""
        for id, own in routed.items():
            for known in (self._runs, self._jobs):
                if known.pop(id, id) is None:
                    known[own] = None

    def add(self, launches: Sequence[Launch], children: Sequence[str] = ()) -> None:
        """Add what a handler started, and the runs it called. Its attempt may still fail: then there is nothing to
        claim."""
        self._runs |= dict.fromkeys(children)
        for launch in launches:
            (self._runs if launch.is_run else self._jobs)[launch.id] = None
