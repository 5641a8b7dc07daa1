"""What an attempt remembers and what it sleeps on: its journal, its durable calls and its gates."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..core.clock import Clock
from ..core.errors import AttemptCancelled, BadArgument, Suspension
from ..core.payload import pack, unpack
from ..ports.unit import DELIVERIES, Committed, Fenced, NewJob, Receipt, Refused, SettleWait, Unit, WaitChange
from .call_recorder import CallRecorder
from .calls import WaitCall, tell_apart
from .journal import RESULT, Journal, PendingWrites
from .wait_records import EVENT, TIME, TRIGGER, WaitBody, recorded_wait_id, step_event, trigger_event
from .waits import Waits

if TYPE_CHECKING:
    from ..worker.outcomes import Work

OUTDATED = "what it waited for came meanwhile"
LOOK_BACK = "look-back"

Submit = Callable[[Unit], Awaitable[Receipt]]


class DurableSession:
    """The durable side of one attempt."""

    def __init__(
        self,
        work: Work,
        *,
        clock: Clock,
        rng: random.Random,
        unit_id: Callable[[], str],
        submit: Submit,
        check: Callable[[], None],
        public_url: str,
    ) -> None:
        claim = work.claim
        about = f"step {work.step!r} of run {work.run_id}" if work.run_id is not None else f"job {claim.job}"
        self.journal = Journal(dict(claim.memos), claim.scope, about, lambda: work.handler.code)
        self.rng = rng
        self.check = check
        self.suspended = False
        self.due: int | None = None
        self._work = work
        self._clock = clock
        self._unit_id = unit_id
        self._submit = submit
        self._public_url = public_url
        self._calls: CallRecorder | None = None
        self._waits: Waits | None = None

    # Not cached_property: its lock costs more than what it guards.

    @property
    def calls(self) -> CallRecorder:
        if self._calls is None:
            self._calls = CallRecorder(self)
        return self._calls

    @property
    def waits(self) -> Waits:
        if self._waits is None:
            if self._work.run_id is None:
                raise BadArgument(
                    f"job {self._work.claim.job} belongs to no run and cannot wait: make it a step of a flow, or "
                    "enqueue another job with a delay"
                )
            self._waits = Waits(self.calls, self)
        return self._waits

    def let_go(self) -> None:
        self._calls = self._waits = None

    @property
    def now_ms(self) -> int:
        return max(self._clock.now_ms(), self._work.claim.at)

    # What is written

    async def record(self) -> None:
        kept = self.journal.take()
        if kept:
            await self._write(kept, [])

    async def expire(self, gate: Sequence[WaitChange]) -> None:
        await self._write(self.journal.take(), gate)

    async def _write(self, kept: PendingWrites, gate: Sequence[WaitChange]) -> None:
        unit = Unit(
            self._unit_id(),
            claim=self._work.claim,
            events=kept.events,
            jobs=kept.jobs,
            memos=kept.memos,
            waits=[*kept.waits, *gate],
        )
        receipt = await self._submit(unit)
        if isinstance(receipt, Refused):
            raise AttemptCancelled(OUTDATED)
        if isinstance(receipt, Fenced):
            raise AttemptCancelled("cancelled" if self._work.run_id is not None else "lease lost")
        assert isinstance(receipt, Committed)

    def suspend(self, waiting: Sequence[WaitCall[Any]]) -> Suspension:
        tell_apart(waiting)
        for gate in waiting:
            gate.hold()
        self.due = min((gate.due for gate in waiting if gate.due is not None), default=None)
        self.suspended = True
        return Suspension(f"{self.journal.about} waits; this exception is not to be caught")

    def finish(self) -> PendingWrites:
        """What is written with the attempt's end, the gates that nobody will stand before again closed."""
        for key, entry in self.journal.entries.items():
            if entry.kind in (TIME, EVENT, TRIGGER) and self.journal.recall(key + RESULT) is None:
                id = recorded_wait_id(entry.kind, self.journal.scope, key, unpack(bytes(entry.value)))
                self.journal.kept.waits.append(SettleWait(id, "cancelled", lenient=True))
                if entry.kind == TRIGGER:
                    self.add_trigger_event("trigger.cancelled", id, {"reason": "the step has ended"})
        return self.journal.take()

    # What gates ask

    @property
    def run(self) -> str:
        assert self._work.run_id is not None
        return self._work.run_id

    @property
    def job(self) -> str:
        return self._work.claim.job

    def new_wait_body(self, key: str) -> WaitBody:
        work = self._work
        return WaitBody(key, self.now_ms, work.step, work.n, work.shown_correlation)

    def say(self, kind: str, data: dict[str, Any], trigger: str | None = None) -> None:
        work = self._work
        meta: dict[str, Any] = {"attempt": work.claim.attempt}
        if trigger is not None:
            meta["triggerId"] = trigger
        event = step_event(work.recorder, kind, self.run, work.step, work.n, work.shown_correlation, data, meta)
        self.journal.kept.events.append(event)

    def add_trigger_event(self, kind: str, id: str, data: dict[str, Any]) -> None:
        event = trigger_event(self._work.recorder, kind, id, self.run, self.new_wait_body(""), data)
        self.journal.kept.events.append(event)

    def look_back(self, gate: str) -> NewJob:
        return NewJob(f"look.{self._unit_id()}", DELIVERIES, LOOK_BACK, pack({"wait": gate}))

    def url(self, token: str) -> str:
        return f"{self._public_url.rstrip('/')}/api/triggers/{token}"
