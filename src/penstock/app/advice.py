"""What is done as it was asked and is most likely a mistake: it is warned about, once."""

from __future__ import annotations

import logging
from typing import Any

from ..commit.runtime import Runtime
from ..core.errors import StoreError
from ..core.near_match import did_you_mean
from ..ports.unit import JobState

log = logging.getLogger("penstock")
_WORKED = (JobState.ACTIVE, JobState.COMPLETED, JobState.FAILED)


class Doubts:
    """Warnings of one App."""

    def __init__(self, runtime: Runtime) -> None:
        self._store = runtime.store
        self._bodies = runtime.bodies
        self._registry = runtime.registry
        self._looked: set[tuple[str, str | None]] = set()

    async def unworked(self, queue: str, name: str | None) -> None:
        """A job that none of the handlers here takes. A program without handlers only adds for others, and so may
        this one if someone has worked on that queue before."""
        registry = self._registry()
        if (queue, name) in self._looked or not registry.handlers() or registry.job(queue, name or "*") is not None:
            return
        self._looked.add((queue, name))
        mine = queue in registry.queues()
        if not mine and await self._is_worked_on(queue):
            return
        what = f"queue {queue!r}" if name is None else f"jobs {name!r} of queue {queue!r}"
        known = {of for of, _ in registry.jobs}
        takes = sorted(one for of, one in registry.jobs if of == queue) if queue in known else sorted(known)
        hint = (
            did_you_mean(name if queue in known and name else queue, takes) or f"there are {', '.join(takes) or 'none'}"
        )
        log.warning("%s: no handler here takes such a job%s: %s", what, "" if mine else ", and nobody has yet", hint)

    async def other_input(self, run: str, input: Any) -> None:
        """A key that names a run which was started with something else."""
        try:
            first = await self._store.read(self._bodies.flow(run), limit=1)
        except StoreError:
            return
        began = first[0].data if first else None
        if isinstance(began, dict) and "input" in began and began["input"] != self._bodies.value(input):
            log.warning("run %r exists and was started with another input: it goes on with that one, not this", run)

    async def _is_worked_on(self, queue: str) -> bool:
        try:
            rows = [row for row in await self._store.queues() if row.name == queue]
        except StoreError:  # the job is added, and that is what was asked for
            return True
        return any(row.counts[state] for row in rows for state in _WORKED)
