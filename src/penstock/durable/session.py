"""The durable session of an attempt: its journal, its durable calls, its waits, and the commits they make."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..core.clock import Clock
from ..core.errors import AttemptCancelled, BadArgument, Suspension
from ..core.payload import pack, unpack
from ..ports.unit import DELIVERIES, Committed, Fenced, NewJob, Receipt, Refused, SettleWait, Unit, WaitChange
from .call_recorder import CallRecorder
from .calls import WaitCall, mark_shared_kinds
from .journal import RESULT, Journal, JournalCall, PendingWrites
from .triggers import trigger_url
from .wait_records import (
    EVENT,
    TIME,
    TRIGGER,
    WaitBody,
    build_step_event,
    build_trigger_event,
)
from .waits import Waits

if TYPE_CHECKING:
    from ..worker.outcomes import Work

OUTDATED = "a wait was resolved while the step was suspending"
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
        self.is_suspended = False
        self.due: int | None = None
        self._work = work
        self._clock = clock
        self._unit_id = unit_id
        self._submit = submit
        self._public_url = public_url
        self._calls: CallRecorder | None = None
        self._waits: Waits | None = None

    # Not cached_property: its lock costs more than the object it would cache.

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
                    f"job {self._work.claim.job} is not part of a run and cannot wait. Make it a step of a flow, "
                    "or enqueue another job with a delay"
                )
            self._waits = Waits(self.calls, self)
        return self._waits

    def dispose(self) -> None:
        """Drop the parts that refer to each other, so that no garbage collection is needed."""
        self._calls = self._waits = None

    @property
    def now_ms(self) -> int:
        return max(self._clock.now_ms(), self._work.claim.at)

    # Commits

    async def flush(self) -> None:
        writes = self.journal.take_writes()
        if writes:
            await self._commit(writes, [])

    async def expire(self, changes: Sequence[WaitChange]) -> None:
        await self._commit(self.journal.take_writes(), changes)

    async def _commit(self, writes: PendingWrites, changes: Sequence[WaitChange]) -> None:
        unit = Unit(
            self._unit_id(),
            claim=self._work.claim,
            events=writes.events,
            jobs=writes.jobs,
            memos=writes.memos,
            waits=[*writes.waits, *changes],
        )
        receipt = await self._submit(unit)
        if isinstance(receipt, Refused):
            raise AttemptCancelled(OUTDATED)
        if isinstance(receipt, Fenced):
            raise AttemptCancelled("cancelled" if self._work.run_id is not None else "lease lost")
        assert isinstance(receipt, Committed)

    def begin(self, call: JournalCall) -> None:
        """Let a call without a record do its work."""

    def suspend(self, waits: Sequence[WaitCall[Any]]) -> Suspension:
        mark_shared_kinds(waits)
        for wait in waits:
            wait.suspend()
        self.due = min((wait.due for wait in waits if wait.due is not None), default=None)
        self.is_suspended = True
        return Suspension(f"{self.journal.about} is suspended; do not catch this exception")

    def finish(self) -> PendingWrites:
        """Return the writes of the attempt's end, with all pending waits cancelled."""
        for key, entry in self.journal.entries.items():
            if entry.kind in (TIME, EVENT, TRIGGER) and self.journal.read_memo(key + RESULT) is None:
                id = unpack(bytes(entry.value))["id"]
                self.journal.writes.waits.append(SettleWait(id, "cancelled", lenient=True))
                if entry.kind == TRIGGER:
                    self.add_trigger_event("trigger.cancelled", id, {"reason": "the step has ended"})
        return self.journal.take_writes()

    # What waits need

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

    def add_step_event(self, kind: str, data: dict[str, Any], **meta: Any) -> None:
        work = self._work
        meta = {"attempt": work.claim.attempt, **meta}
        event = build_step_event(work.bodies, kind, self.run, work.step, work.n, work.shown_correlation, data, meta)
        self.journal.writes.events.append(event)

    def add_trigger_event(self, kind: str, id: str, data: dict[str, Any]) -> None:
        event = build_trigger_event(self._work.bodies, kind, id, self.run, self.new_wait_body(""), data)
        self.journal.writes.events.append(event)

    def look_back_job(self, wait: str) -> NewJob:
        return NewJob(f"look.{self._unit_id()}", DELIVERIES, LOOK_BACK, pack({"wait": wait}))

    def trigger_url(self, token: str) -> str:
        return trigger_url(self._public_url, token)
