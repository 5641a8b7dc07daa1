"""What to do with runs that were started by another version of their flow (`on_change=`)."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import replace

from ..core.errors import AttemptCancelled, VersionMismatch
from ..core.retry import RetryPolicy
from ..core.text import shorten
from ..handlers.handler import Handler
from ..handlers.registry import Flow
from ..ports.unit import Claim
from .run_record import RunRecord

log = logging.getLogger("penstock.worker")
OTHER_VERSION = "its worker has another version of the flow"
MIN_RELEASE_DELAY_MS, MAX_RELEASE_DELAY_MS = 1_000, 300_000
MAX_TRACKED_JOBS = 10_000


def explain_mismatch(run: str, record: RunRecord, flow: Flow) -> str | None:
    """Return why this code must not continue a run, or None if it may."""
    here = flow.definition
    if record.version == here.version or here.on_change == "continue":
        return None
    started_by = f"version {record.version}" if record.version else "code without a version"
    return (
        f"run {run} was started by {started_by} of flow {flow.name!r}; this code is version {here.version} with "
        f"on_change={shorten(here.on_change)}. Run a worker that has that version, set on_change='continue', or start "
        f"the run again: `penstock runs replay {run}`"
    )


class VersionPolicy:
    """Decides what to do with a claim of a run of another version. Logs one warning for each version."""

    def __init__(self) -> None:
        self._warned: set[tuple[str, str | None]] = set()
        self._releases: OrderedDict[str, int] = OrderedDict()  # job -> how often this worker released it

    def release_delay_ms(self, job: str) -> int:
        """Return how long a released job is delayed. The delay doubles, since each claim appends events.

        It depends on releases, not on attempts: a step that was resumed often has many attempts, and chance decides
        which worker claims it next, so a worker with the right version must soon get another try.
        """
        releases = self._releases.pop(job, 0)
        self._releases[job] = releases + 1
        if len(self._releases) > MAX_TRACKED_JOBS:
            self._releases.popitem(last=False)
        return min(MIN_RELEASE_DELAY_MS << min(releases, 20), MAX_RELEASE_DELAY_MS)

    def replacement_handler(self, claim: Claim, record: RunRecord, flow: Flow) -> Handler | None:
        """Return a handler to run instead of the step, or None to run the step with this version."""
        assert claim.run is not None
        mismatch = explain_mismatch(claim.run, record, flow)
        if mismatch is None:
            return None
        is_pinned = flow.definition.on_change == "pin"
        if is_pinned and (flow.name, record.version) not in self._warned:
            self._warned.add((flow.name, record.version))
            log.warning("%s; until then its steps are released to their queues", mismatch)

        async def refuse() -> None:
            raise AttemptCancelled(OTHER_VERSION) if is_pinned else VersionMismatch(mismatch)

        step = flow.steps.get(claim.name)
        if step is None:
            return Handler(name=claim.name, fn=refuse, queue=claim.queue, retry=RetryPolicy())
        return replace(step.handler, fn=refuse, retry=RetryPolicy(), input_schema=None, output_schema=None, wait=None)
