"""Runs begun under another version of their flow, and what its policy says of them."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import replace

from ..core.errors import AttemptCancelled, VersionMismatch
from ..core.retry import RetryPolicy
from ..handlers.handler import Handler
from ..handlers.registry import Flow
from ..ports.unit import Claim
from .run_record import RunRecord

log = logging.getLogger("penstock.worker")
OTHER_VERSION = "its worker has another version of the flow"
FIRST_LOOK, LAST_LOOK = 1_000, 300_000  # milliseconds
REMEMBERED = 10_000  # jobs


def explain_mismatch(run: str, record: RunRecord, flow: Flow) -> str | None:
    """What keeps this code from going on with a run; None if nothing does."""
    here = flow.definition
    if record.version == here.version or here.on_change == "continue":
        return None
    return (
        f"run {run} began under version {record.version or 'none'} of flow {flow.name!r}, and the code here is version "
        f"{here.version}, whose on_change is {here.on_change!r}: run a worker that has that version, let this code go "
        f"on with on_change='continue', or start it anew with `penstock runs replay {run}`"
    )


class VersionPolicy:
    """Says what to do with a claim of a run of another version. Warns of each once."""

    def __init__(self) -> None:
        self._warned: set[tuple[str, str | None]] = set()
        self._looks: OrderedDict[str, int] = OrderedDict()  # job -> how often it was given back here

    def release_delay_ms(self, job: str) -> int:
        """How long a job is left alone that is given back: ever longer, for each look is recorded.

        By looks and not by attempts: a step that was resumed often has had many, and who comes first when it is due
        again is a matter of chance, so a worker with the right version must soon have another."""
        looks = self._looks.pop(job, 0)
        self._looks[job] = looks + 1
        if len(self._looks) > REMEMBERED:
            self._looks.popitem(last=False)
        return min(FIRST_LOOK << min(looks, 20), LAST_LOOK)

    def replacement_handler(self, claim: Claim, record: RunRecord, flow: Flow | None) -> Handler | None:
        """What is to be run instead of the step; None if the step is."""
        assert claim.run is not None
        said = explain_mismatch(claim.run, record, flow) if flow is not None else None
        if said is None or flow is None:
            return None
        pinned = flow.definition.on_change == "pin"
        if pinned and (flow.name, record.version) not in self._warned:
            self._warned.add((flow.name, record.version))
            log.warning("%s; its steps go back to their queues meanwhile", said)

        async def instead() -> None:
            raise AttemptCancelled(OTHER_VERSION) if pinned else VersionMismatch(said)

        own = flow.steps.get(claim.name)
        if own is None:
            return Handler(name=claim.name, fn=instead, queue=claim.queue, retry=RetryPolicy())
        return replace(own.handler, fn=instead, retry=RetryPolicy(), input_schema=None, output_schema=None, wait=None)
