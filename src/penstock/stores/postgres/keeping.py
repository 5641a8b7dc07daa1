"""What goes with units besides: finished jobs that are not to stay, keys that jobs hold, queues that are held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...ports.unit import ClaimRequest, Completed, Dead, NewJob, Released, Unit
from .statements import COMPLETED, FAILED

_WIDTHS = (5, 3, 6)


class Keeping:
    """The columns that `admit` and `settle` take; nothing at all for most calls."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._dedupes: list[tuple[Any, ...]] = []
        self._holds: list[tuple[Any, ...]] = []
        self._keeps: list[tuple[Any, ...]] = []
        self._places: list[tuple[int, int]] = []  # unit and place in it of each job with a key
        jobs = 0  # counted over all units, as the function does
        for n, unit in enumerate(units, 1):
            for place, job in enumerate(unit.jobs):
                jobs += 1
                self._add_key(n, place, jobs, job)
            self._add_end(n, unit)

    def __bool__(self) -> bool:
        return bool(self._dedupes or self._holds or self._keeps)

    def _add_key(self, n: int, place: int, at: int, job: NewJob) -> None:
        if job.dedupe is not None:
            self._dedupes.append((at, job.id, job.queue, job.dedupe.key, job.dedupe.ttl_ms))
            self._places.append((n, place))

    def _add_end(self, n: int, unit: Unit) -> None:
        claim, outcome = unit.claim, unit.outcome
        if claim is not None and isinstance(outcome, Released) and outcome.hold_until is not None:
            self._holds.append((n, claim.queue, outcome.hold_until))
        elif (kept := what_stays(unit)) is not None:
            self._keeps.append((n, *kept))

    def values(self) -> list[Any]:
        """From `d_job` to `k_age`."""
        found: list[Any] = []
        for rows, width in zip((self._dedupes, self._holds, self._keeps), _WIDTHS, strict=True):
            found += map(list, zip(*rows, strict=True)) if rows else [[]] * width
        return found

    def without_held(self, ask: ClaimRequest | None) -> ClaimRequest | None:
        """The ask, less of queues that these units hold: they are held when the call is over, and work is handed out
        in it."""
        held = {queue for _, queue, _ in self._holds}
        if ask is None or not held:
            return ask
        wants = (msgspec.structs.replace(w, limit=0) if w.queue in held else w for w in ask.queues)
        return msgspec.structs.replace(ask, queues=tuple(wants))

    def lifted(self) -> int | None:
        """When the first of those holds is over."""
        return min((until for _, _, until in self._holds), default=None)

    def stand(self, found: Sequence[str | None]) -> dict[int, dict[int, str]]:
        """Who stands for which job of which unit."""
        by_unit: dict[int, dict[int, str]] = {}
        for (n, place), holder in zip(self._places, found, strict=True):
            if holder is not None:
                by_unit.setdefault(n, {})[place] = holder
        return by_unit


def what_stays(unit: Unit) -> tuple[Any, ...] | None:
    """The job a unit ends, and what is to stay of its like: from `k_pk` to `k_age`."""
    claim, outcome = unit.claim, unit.outcome
    if claim is None or not isinstance(outcome, Completed | Dead) or outcome.keep is None:
        return None
    state = COMPLETED if isinstance(outcome, Completed) else FAILED
    return claim.handle, claim.queue, state, outcome.keep.count, outcome.keep.age_ms


def apart(units: Sequence[Unit]) -> list[Sequence[Unit]]:
    """Units in as few calls as can be.

    A call removes jobs at its end and looks at keys in its beginning. So a unit begins another one that adds a job
    whose id an earlier unit sets free, or whose key is asked for by an earlier unit that may yet be refused.
    """
    parts: list[Sequence[Unit]] = []
    first, freed, doubtful = 0, set[str](), set[tuple[str, str]]()
    for n, unit in enumerate(units):
        keys = {(job.queue, job.dedupe.key) for job in unit.jobs if job.dedupe is not None}
        if not doubtful.isdisjoint(keys) or not freed.isdisjoint(job.id for job in unit.jobs):
            parts.append(units[first:n])
            first, freed, doubtful = n, set(), set()
        if keys and not _certain(unit):
            doubtful |= keys
        if isinstance(unit.outcome, Completed | Dead) and unit.outcome.keep is not None and unit.claim is not None:
            freed.add(unit.claim.job)
    return [*parts, units[first:]]


def _certain(unit: Unit) -> bool:
    """Whether nothing can be in its way."""
    return (
        unit.claim is None
        and unit.run is None
        and unit.once_key is None
        and not (unit.removes or unit.waits or unit.state or unit.schedule)
    )
