"""Warnings about calls that succeed but are most likely mistakes. Each is logged once."""

from __future__ import annotations

import logging
from typing import Any

from ..commit.runtime import Runtime
from ..core.errors import StoreError
from ..core.near_match import did_you_mean
from ..ports.unit import JobState

log = logging.getLogger("penstock")
_WORKED_ON = (JobState.ACTIVE, JobState.COMPLETED, JobState.FAILED)


class Advice:
    """The warnings of one App."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._checked: set[tuple[str, str | None]] = set()

    async def warn_about_queue(self, queue: str, name: str | None = None) -> None:
        """Warn about a queue, or a job of it, that has no handler here.

        A program without handlers enqueues for others, so it is not warned. Neither is one whose queue had work done
        before.
        """
        registry = self._runtime.registry()
        if (queue, name) in self._checked or not registry.handlers():
            return
        self._checked.add((queue, name))
        is_ours = queue in registry.queues()
        if not is_ours and await self._is_worked_on(queue):
            return
        jobs = f"queue {queue!r}" if name is None else f"job {name!r} in queue {queue!r}"
        queues = {queue for queue, _ in registry.jobs}
        known = sorted(job for of, job in registry.jobs if of == queue) if queue in queues else sorted(queues)
        if queue in queues and name is None:
            names = ", ".join(known)
            log.warning(
                "the handlers of queue %r process only jobs with their own name; pass name=, one of: %s", queue, names
            )
            return
        hint = did_you_mean(name if queue in queues and name else queue, known)
        log.warning(
            "%s has no handler in this process; %s",
            jobs,
            hint or f"known {'jobs' if queue in queues else 'queues'}: {', '.join(known) or 'none'}",
        )

    async def check_same_input(self, kind: str, run: str, input: Any) -> bool:
        """Return whether the run of an idempotency key was started with this input; warn if with another one."""
        bodies = self._runtime.bodies
        try:
            first = await self._runtime.store.read(bodies.run(kind, run), limit=1)
        except StoreError:
            return True
        started = first[0].data if first else None
        if isinstance(started, dict) and "input" in started and started["input"] != bodies.redact_value(input):
            log.warning("run %r already exists with a different input; the new input is ignored", run)
            return False
        return True

    async def _is_worked_on(self, queue: str) -> bool:
        try:
            rows = [row for row in await self._runtime.store.queues() if row.name == queue]
        except StoreError:  # the job is added, and that is what the caller wants
            return True
        return any(row.counts[state] for row in rows for state in _WORKED_ON)
