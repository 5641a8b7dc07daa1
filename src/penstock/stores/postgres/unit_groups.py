"""Split the units of a commit into groups: `commit_units` checks a group unit by unit and writes it at once."""

from __future__ import annotations

from collections.abc import Sequence

from ...ports.unit import Completed, Dead, Unit
from .statements import COMPLETED, FAILED


def group_ends(units: Sequence[Unit]) -> list[int]:
    """Return the position of the last unit of each group.

    A unit is a group of its own if it changes jobs that it has not claimed. A unit starts a new group if it depends on
    writes that a group makes at its end: it adds a tree of jobs, a job whose id an earlier unit sets free, or a job
    whose dedupe key an earlier unit asks for that may be refused.
    """
    ends: list[int] = []
    freed, uncertain, is_alone = set[str](), set[tuple[str, str]](), False
    for n, unit in enumerate(units):
        keys = {(job.queue, job.dedupe.key) for job in unit.jobs if job.dedupe is not None}
        changes_others = bool(unit.removes or unit.wakes or (unit.run is not None and unit.run.cancel_jobs))
        if n and (
            is_alone
            or changes_others
            or (unit.jobs and unit.jobs[0].waits_for_children)
            or not uncertain.isdisjoint(keys)
            or (freed and not freed.isdisjoint(job.id for job in unit.jobs))
        ):
            ends.append(n)
            freed, uncertain = set(), set()
        is_alone = changes_others
        if keys and not _is_certain(unit):
            uncertain |= keys
        if unit.claim is not None and keep_limit(unit) is not None:
            freed.add(unit.claim.job)
    return [*ends, len(units)] if units else ends


def keep_limit(unit: Unit) -> tuple[int, str, int, int | None, int | None] | None:
    """Return the job a unit ends and how many finished jobs like it are kept: key, queue, state, count, age."""
    claim, outcome = unit.claim, unit.outcome
    if claim is None or not isinstance(outcome, Completed | Dead) or outcome.keep is None:
        return None
    state = COMPLETED if isinstance(outcome, Completed) else FAILED
    return claim.handle, claim.queue, state, outcome.keep.count, outcome.keep.age_ms


def _is_certain(unit: Unit) -> bool:
    """Return whether nothing can refuse the unit."""
    return (
        unit.claim is None
        and unit.run is None
        and unit.once_key is None
        and not (unit.removes or unit.waits or unit.state or unit.schedule)
    )
