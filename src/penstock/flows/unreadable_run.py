"""Steps of a run whose record cannot be read: each fails once, and nothing else of the run is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..commit.committer import CommitRequest
from ..core.errors import UnreadableRecord
from ..core.events import EventBody
from ..handlers.trigger_table import TriggerTable
from ..jobs.dead_letters import build_dead_letter
from ..jobs.engine import missing_handler
from ..ports.unit import Claim, Dead, NewEvent, Released, Unit
from ..worker.outcomes import Failure, Interruption, pack_record
from .run_record import RunRecord
from .step_work import StepWork

if TYPE_CHECKING:
    from .engine import FlowEngine


class UnreadableRunWork(StepWork):
    """One claim of a step whose run record cannot be read. It fails once, and leaves a dead letter. The
    run keeps its record, so that people can see and restore it."""

    def __init__(self, engine: FlowEngine, claim: Claim, problem: UnreadableRecord) -> None:
        assert claim.run is not None
        record, handler = RunRecord("", claim.run, 0), missing_handler(claim.name, claim.queue, problem)
        super().__init__(engine, claim, record, TriggerTable("", "", {}), None, handler, 1)
        self.flow = None

    def on_failure(self, failure: Failure) -> CommitRequest:
        error, now, claim = msgspec.to_builtins(failure.error), self._engine.clock.now_ms(), self.claim
        meta = {"attempt": claim.attempt, "maxAttempts": 1, "duration": failure.output.duration_ms}
        raw = msgspec.Raw(pack_record({**error, "willRetry": False}))
        body = EventBody("step.failed", step=self._step, data=raw, meta=meta)
        unit = Unit(
            self._engine.new_unit_id(),
            claim=claim,
            outcome=Dead(pack_record(error)),
            events=[NewEvent(self.stream, self.bodies.encode(body))],
            jobs=[build_dead_letter(self, failure.error, now, claim.attempt, is_undecided=True)],
        )
        return CommitRequest(lambda _v, _r: unit, outlasts_outage=True)

    def on_interruption(self, interruption: Interruption) -> CommitRequest:
        outcome = Released(gives_attempt_back=not interruption.is_counted)
        unit = Unit(self._engine.new_unit_id(), claim=self.claim, outcome=outcome)
        return CommitRequest(lambda _v, _r: unit, outlasts_outage=True)
