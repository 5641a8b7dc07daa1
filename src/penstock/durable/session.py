"""The durable session of an attempt: its journal, its durable calls, its waits, and the commits they make."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ..core.clock import Clock
from ..core.errors import AttemptCancelled, BadArgument, StoreError, Suspension
from ..core.events import EventBody
from ..core.payload import pack, unpack
from ..ports.unit import (
    DELIVERIES,
    FLOW,
    Committed,
    Fenced,
    NewEvent,
    NewJob,
    Receipt,
    Refused,
    SettleWait,
    Unit,
    WaitChange,
)
from ..telemetry.tracing import AttemptSpan
from .branches import OUTDATED
from .call_recorder import CallRecorder
from .calls import WaitCall, mark_shared_kinds
from .child_runs import ChildCalls, ChildLaunch, ChildOutcome, ChildRequest, cancel_job, has_call
from .journal import Journal, JournalCall, PendingWrites
from .trigger_waits import trigger_url
from .wait_records import (
    CALL,
    EVENT,
    TIME,
    TRIGGER,
    WaitBody,
    build_step_event,
    build_trigger_event,
)
from .waits import Waits, find_pending_wait

if TYPE_CHECKING:
    from ..worker.outcomes import Work

LOOK_BACK = "look-back"

DEFAULT_MAX_CALLS = 32
Submit = Callable[[Unit], Awaitable[Receipt]]
MarkCalls = Callable[[], Awaitable[None]]


class SessionChannel(Protocol):
    """The attempt's channel, as its durable session sees it."""

    @property
    def handler_task(self) -> asyncio.Task[Any] | None: ...

    def check(self) -> None:
        """Raise ContextClosed once the attempt is over."""
        ...

    def note_caller(self) -> None:
        """Take note of a call that another task or thread than the handler's own makes."""
        ...

    def leave(self, stop: BaseException) -> None:
        """Cancel the handler's task. The attempt ends with `stop`."""
        ...


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
        channel: SessionChannel,
        public_url: str,
        max_calls: int = DEFAULT_MAX_CALLS,
        mark_calls: MarkCalls | None = None,
        orders_effects: bool = True,
    ) -> None:
        claim = work.claim
        about = f"step {work.step!r} of run {work.run_id}" if work.run_id is not None else f"job {claim.job}"
        self.journal = Journal(dict(claim.memos), claim.scope, about, lambda: work.handler.code)
        self.journal.orders_effects = orders_effects
        self.rng = rng
        self.check = channel.check
        self.note_caller = channel.note_caller
        self.leave = channel.leave
        self.max_calls = max_calls
        self._channel = channel
        self._urgent = 0  # commits in flight that functions wait for
        self._urgent_done: list[asyncio.Future[None]] = []
        self.is_suspended = False
        self.children: list[tuple[str, int | None]] = []  # runs that it called: an id, or the start of so many ids
        self.due: int | None = None
        self._work = work
        self._clock = clock
        self._unit_id = unit_id
        self._submit = submit
        self._public_url = public_url
        self._mark_calls = mark_calls
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

    @property
    def has_branches(self) -> bool:
        """Whether the handler has made concurrent calls."""
        return self.journal.is_concurrent and self._calls is not None

    async def end_branches(self) -> None:
        """End the tasks that the handler left behind."""
        if self._calls is not None:
            await self._calls.branches.end()

    @property
    def child_calls(self) -> ChildCalls:
        if self._work.run_id is None or self._work.launcher is None:
            raise BadArgument(
                f"job {self._work.claim.job} is not part of a run and cannot wait for another one. Make it a step of a "
                "flow, or use ctx.start, which does not wait"
            )
        return ChildCalls(self.calls, self)

    def dispose(self) -> None:
        """Drop the parts that refer to each other, so that no garbage collection is needed."""
        if self._calls is not None:
            self._calls.close()
        self._calls = self._waits = None

    @property
    def span(self) -> AttemptSpan | None:
        return self._work.span

    @property
    def now_ms(self) -> int:
        return max(self._clock.now_ms(), self._work.claim.at)

    # Commits

    def flush(self) -> Coroutine[Any, Any, None]:
        is_urgent, writes = self.journal.is_urgent, self.journal.take_writes()
        if not writes:
            return self.wait_for_urgent()
        return self._commit_urgent(writes) if is_urgent else self._commit(writes, [])

    async def _commit_urgent(self, writes: PendingWrites) -> None:
        self._urgent += 1
        try:
            await self._commit(writes, [])
        finally:
            self._urgent -= 1
            self._wake_waiting()

    @property
    def is_flushing(self) -> bool:
        return self._urgent > 0

    async def wait_for_urgent(self) -> None:
        while self._urgent:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._urgent_done.append(done)
            await done

    def _wake_waiting(self) -> None:
        waiting, self._urgent_done = self._urgent_done, []
        for done in waiting:
            if not done.done():
                done.set_result(None)

    async def register_wait(self, wait: WaitCall[Any]) -> None:
        """Commit a parked wait while other branches go on. One that is resolved already stays as it is."""
        journal = self.journal
        held, journal.writes = journal.writes, PendingWrites()
        wait.register()
        writes, journal.writes = journal.writes, held
        if writes:
            unit = Unit(self._unit_id(), claim=self._work.claim, jobs=writes.jobs, waits=writes.waits)
            await self._submit(unit)

    @property
    def handler_task(self) -> asyncio.Task[Any] | None:
        return self._channel.handler_task

    async def expire(self, changes: Sequence[WaitChange]) -> None:
        await self._commit(self.journal.take_writes(), changes)

    async def _commit(self, writes: PendingWrites, changes: Sequence[WaitChange]) -> None:
        if writes.waits and self._mark_calls is not None and has_call(writes.waits):
            # First: a command that cancels the run then knows that it may have children.
            await self._mark_calls()
            self._mark_calls = None
        unit = Unit(
            self._unit_id(),
            claim=self._work.claim,
            events=writes.events,
            jobs=writes.jobs,
            memos=writes.memos,
            waits=[*writes.waits, *changes] if changes else writes.waits,
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
        if self.journal.is_concurrent:
            self._cancel_abandoned({wait.name for wait in waits})
        self.due = min((wait.due for wait in waits if wait.due is not None), default=None)
        self.is_suspended = True
        return Suspension(f"{self.journal.about} is suspended; do not catch this exception")

    def _cancel_abandoned(self, names: set[str]) -> None:
        """Cancel the waits of cancelled branches: a timeout came around them, or another branch came first."""
        for key, entry in self.journal.entries.items():
            if entry.kind not in (TIME, EVENT) or key not in self.journal.reached or key in names:
                continue
            id = find_pending_wait(self.journal, key, unpack(bytes(entry.value))["id"])
            if id is not None:
                self.journal.writes.waits.append(SettleWait(id, "cancelled", lenient=True))

    def finish(self) -> PendingWrites:
        """Return the writes of the attempt's end, with all pending waits cancelled."""
        for key, entry in self.journal.entries.items():
            if entry.kind not in (TIME, EVENT, TRIGGER, CALL):
                continue
            id = find_pending_wait(self.journal, key, unpack(bytes(entry.value))["id"])
            if id is not None:
                self.journal.writes.waits.append(SettleWait(id, "cancelled", lenient=True))
                if entry.kind == TRIGGER:
                    self.add_trigger_event("trigger.cancelled", id, {"reason": "the step has ended"})
                if entry.kind == CALL:
                    self.journal.writes.jobs.append(cancel_job(id, "the step that called it has ended"))
        return self.journal.take_writes()

    # Events of durable calls

    def build_plain_call_event(self, kind: str, sample: str, data: bytes) -> NewEvent:
        work = self._work
        if work.subject is None and work.shown_correlation is None and work.n == 1:
            start = work.bodies.encode_start(kind, work.step, sample)
            if start is not None:
                return NewEvent(work.stream, b'%b%b,"meta":{"attempt":%d}}' % (start, data, work.claim.attempt))
        return self.build_call_event(kind, data)

    def build_call_event(self, kind: str, data: bytes) -> NewEvent:
        work = self._work
        meta = {"attempt": work.claim.attempt} if work.n == 1 else {"attempt": work.claim.attempt, "n": work.n}
        raw, corr = msgspec.Raw(data), work.shown_correlation
        return NewEvent(
            work.stream, work.bodies.encode(EventBody(kind, work.subject, None, work.step, None, corr, raw, meta))
        )

    async def send_events(self, events: Sequence[NewEvent]) -> None:
        try:
            await self._submit(Unit(self._unit_id(), claim=self._work.claim, events=list(events)))
        except StoreError:
            pass  # the call's own commit fails the same way and reports it

    def redact_text(self, text: str) -> str:
        return self._work.bodies.redact_text(text)

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
        body = WaitBody(key, self.now_ms, work.step, work.n, work.shown_correlation)
        body.trace = work.trace if work.span is not None else None
        if work.claim.kind != FLOW:  # an equal string that is another object would be stored
            body.kind = work.claim.kind
        return body

    def add_step_event(self, kind: str, data: dict[str, Any], **meta: Any) -> None:
        work = self._work
        meta = {"attempt": work.claim.attempt, **meta}
        event = build_step_event(work.bodies, kind, self.run, self.new_wait_body(""), data, meta)
        self.journal.writes.events.append(event)

    def add_trigger_event(self, kind: str, id: str, data: dict[str, Any]) -> None:
        event = build_trigger_event(self._work.bodies, kind, id, self.run, self.new_wait_body(""), data)
        self.journal.writes.events.append(event)

    def find_flow_name(self, flow: Any) -> str:
        assert self._work.launcher is not None
        return self._work.launcher.flow_name(flow)

    def launch_children(self, request: ChildRequest, key: str, call: str) -> ChildLaunch:
        assert self._work.launcher is not None
        launch = self._work.launcher.build_children(request, self._work, key, call)
        self.children.append((launch.run, launch.count if request.is_many else None))
        return launch

    def convert_result(self, request: ChildRequest, value: Any, run: str) -> Any:
        assert self._work.launcher is not None
        return self._work.launcher.convert_result(request, value, run)

    async def read_outcomes(self, call: str, prefix: str, count: int) -> list[ChildOutcome]:
        assert self._work.launcher is not None
        return await self._work.launcher.read_outcomes(self.run, call, prefix, count)

    async def read_outcome(self, run: str) -> ChildOutcome | None:
        """Return how a child has ended by now; None if it is gone or open."""
        assert self._work.launcher is not None
        return await self._work.launcher.read_outcome(run)

    def look_back_job(self, wait: str, since: str | None = None) -> NewJob:
        payload = {"wait": wait} if since is None else {"wait": wait, "since": since}
        return NewJob(f"look.{self._unit_id()}", DELIVERIES, LOOK_BACK, pack(payload))

    def trigger_url(self, token: str) -> str:
        return trigger_url(self._public_url, token)
