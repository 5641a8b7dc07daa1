"""Runs that other runs started: start them, tell their parents of their end, let them follow their parents.

Each effect of one run on another is an internal job, added by the commit that causes it. A job may run twice: every
handler here reads first and changes nothing that is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from ..commit.command_sink import DirectSink
from ..commit.committer import CommitRequest
from ..commit.preview import CommandPlan
from ..commit.runtime import Runtime
from ..core.errors import RunError, UnreadableRecord
from ..core.ids import digest
from ..core.payload import NULL, fits
from ..core.trace_context import join_trace
from ..durable.child_runs import CANCELLED, STARTED, ChildOutcome, child_ended_job
from ..durable.journal import encode
from ..durable.wait_records import WaitBody, WaitResult, read_body, resolve_wait
from ..ports.store import RunRow, WaitRow
from ..ports.unit import CANCEL_RUN, DELIVERIES, FLOW, FOLLOW_PARENT, Memo, NewJob, RunParent, Unit
from .engines import Engines

PAGE = 200
MAX_PREVIEWED = 1_000  # children that a dry run reads
PENDING, EXPIRED = "pending", "expired"


class RunStart(msgspec.Struct, omit_defaults=True, rename="camel"):
    """The payload of the internal job that starts a run: its unit cannot write two runs."""

    flow: str
    run: str
    input: Any
    correlation_id: str
    parent: str | None  # the run or job whose handler started it
    priority: int = 0
    due: int = 0  # of the first step, in milliseconds
    tags: dict[str, str] = {}
    link: RunParent | None = None
    kind: str = FLOW
    trace: str | None = None  # the `traceparent` of what starts it


class ManyStarts(msgspec.Struct, omit_defaults=True, rename="camel"):
    """The payload of the internal job that starts a page of many children."""

    start: RunStart  # of the first child; `run` is the start of all ids
    inputs: list[Any]
    first: int
    page: int
    scope: str  # of the step that calls them
    key: str  # the durable call


class ChildEnd(msgspec.Struct):
    """The payload of the internal job that resolves a call."""

    call: str
    run: str


class CallCancellation(msgspec.Struct):
    """The payload of the internal job that cancels the children of a call."""

    call: str
    reason: str


class ParentChange(msgspec.Struct):
    """The payload of the internal job that lets children follow their parent."""

    run: str


def parent_key(run: str) -> str:
    """Return the index key of the runs that a run started. Engines add it to the first write of such a run."""
    return f"p{digest(run.encode())}"


def child_id(prefix: str, n: int) -> str:
    """Return the id of one of many children."""
    return f"{prefix}-{n:06}"


def list_children(prefix: str, count: int) -> list[str]:
    """Return the ids of many children."""
    return [child_id(prefix, n) for n in range(count)]


def end_jobs(run: str, version: int, parent: RunParent | None) -> list[NewJob]:
    """Build what tells the parent that a run has ended. Engines add it to the unit that closes the run."""
    if parent is None or parent.call is None:
        return []
    return [child_ended_job(parent.call, run, f"{run}.v{version}")]


def follow_jobs(run: str, version: int, has_called: bool) -> list[NewJob]:
    """Build what lets children follow. Engines add it to the unit that cancels, pauses or resumes a run."""
    if not has_called:
        return []
    return [NewJob(f"follow.{run}.v{version}", DELIVERIES, FOLLOW_PARENT, encode(ParentChange(run)))]


class ChildRuns:
    """Starts children, resolves the calls that wait for them, and lets them follow their parents."""

    def __init__(self, runtime: Runtime, engines: Callable[[], Engines]) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._engines = engines
        self._sink = DirectSink(runtime.committer)

    # Start

    async def start(self, start: RunStart) -> None:
        """Start a run. One that is called does not start if its parent has stopped waiting for it."""
        if start.link is None or start.link.call is None:
            await self._start_run(start)
            return
        if await self._is_wanted(start.link, start.link.call):
            await self._start_called(start, start.link, start.link.call)

    async def start_many(self, many: ManyStarts) -> None:
        """Start a page of children, and note that they were started."""
        start = many.start
        assert start.link is not None
        assert start.link.call is not None
        link, call = start.link, start.link.call
        if not await self._is_wanted(link, call):
            return
        starts = [
            msgspec.structs.replace(start, run=child_id(start.run, many.first + n), input=input)
            for n, input in enumerate(many.inputs)
        ]
        await asyncio.gather(*map(self._start_run, starts))
        memo = Memo(many.scope, f"{STARTED}{many.key}.{many.page}", b"1")
        await self._submit(Unit(self._runtime.new_unit_id(), memos=[memo]))
        await self._follow_call(link.run, call)
        await self._submit_all(await self.resolve(ChildEnd(call, start.run)))

    async def _start_run(self, start: RunStart) -> None:
        with join_trace(start.trace):
            await self._engines().of_run_kind(start.kind).start(start, self._sink)

    async def _is_wanted(self, link: RunParent, call: str) -> bool:
        parent, wait = await self._store.run(link.run), await self._store.wait_row(call)
        return wait is not None and _state_of_children(parent, wait) != STOPPED

    async def _start_called(self, start: RunStart, link: RunParent, call: str) -> None:
        try:
            await self._start_run(start)
            row = await self._store.run(start.run)
            if row is not None and row.call != call:
                raise RunError(f"run {start.run!r} already exists and was not started by this call; use another key")
        except RunError as problem:
            await self.fail_call(start, call, str(problem), problem.code)
            return
        # The parent may have been stopped since it was read, by a command that has not seen this child.
        await self._follow_call(link.run, call, only=start.run)

    async def fail_call(self, start: RunStart, call: str, error: str, code: str | None = None) -> None:
        """Resolve a call whose run cannot be started."""
        outcome = ChildOutcome(start.run, start.flow, "failed", error=error, code=code)
        await self._submit_all(await self._resolve_one(call, outcome))

    # End

    async def resolve(self, end: ChildEnd) -> list[Unit]:
        """Return the unit that resolves a call whose children have all ended; nothing if one is open."""
        wait = await self._store.wait_row(end.call)
        if wait is None or wait.state != PENDING:
            return []
        body = read_body(wait)
        if body.many is not None:
            if not await self._have_all_ended(wait, body):
                return []
            return [self._resolution(wait, body, b'{"status":"ended"}')]
        row = await self._store.run(end.run)
        if row is None or not row.closed:  # it was redriven, and will end again
            return []
        return [self._resolution(wait, body, encode(await self._outcome(row)))]

    async def _resolve_one(self, call: str, outcome: ChildOutcome) -> list[Unit]:
        wait = await self._store.wait_row(call)
        if wait is None or wait.state != PENDING:
            return []
        return [self._resolution(wait, read_body(wait), encode(outcome))]

    async def _have_all_ended(self, wait: WaitRow, body: WaitBody) -> bool:
        """Return whether all children of a call have ended. Most ends find another child open, with one read."""
        if await self._store.has_open_children(wait.id):
            return False
        memos = await self._store.memos(wait.scope)
        if sum(name.startswith(f"{STARTED}{body.key}.") for name in memos) < body.pages:
            return False
        # Again: a child may have been started between the two reads.
        return not await self._store.has_open_children(wait.id)

    def _resolution(self, wait: WaitRow, body: WaitBody, value: bytes) -> Unit:
        runtime = self._runtime
        result = WaitResult(runtime.clock.now_ms(), msgspec.Raw(value))
        return resolve_wait(wait, body, result, runtime.bodies, runtime.new_unit_id(), "Child ended")

    async def read_outcomes(self, parent: str, call: str, prefix: str, count: int) -> list[ChildOutcome]:
        """Return how the children of a call ended, in order."""
        found: dict[str, ChildOutcome] = {}
        async for row in self._children(parent):
            if row.call == call:
                found[row.id] = await self._outcome(row)
        gone = "the run is gone; it was removed"
        return [
            found.get(id) or ChildOutcome(id, "", "failed", error=gone)
            for id in (child_id(prefix, n) for n in range(count))
        ]

    async def read_outcome(self, run: str) -> ChildOutcome | None:
        """Return how a child is now; None if it is gone or open."""
        row = await self._store.run(run)
        return await self._outcome(row) if row is not None and row.closed else None

    async def _outcome(self, row: RunRow) -> ChildOutcome:
        engines = self._engines()
        try:
            ended = engines.of_run(row).outcome(row.record)
        except UnreadableRecord as problem:
            status = "failed" if row.status == "completed" else row.status
            text = f"it is {row.status}, but its record cannot be read, and its result with it"
            return ChildOutcome(row.id, row.flow, status, error=text, code=problem.code)
        if row.status == "completed":
            result = ended.result if ended.result is not None else await engines.read_result(row)
            if result is None or not fits(len(result)):
                text = "its results exceed 64 KB in total; let it return less"
                return ChildOutcome(row.id, row.flow, "failed", error=text, code="payload_too_large")
            return ChildOutcome(row.id, row.flow, row.status, msgspec.Raw(result or NULL))
        return ChildOutcome(row.id, row.flow, row.status, error=ended.error, code=ended.code)

    # Follow

    async def cancel_call(self, cancellation: CallCancellation) -> None:
        """Cancel the open children of a call that was cancelled or has timed out."""
        wait = await self._store.wait_row(cancellation.call)
        if wait is not None:
            await self._follow_call(wait.run, cancellation.call, reason=cancellation.reason)

    async def follow(self, change: ParentChange) -> None:
        """Cancel, pause or resume the children of a run, as the run is now."""
        await self._follow_call(change.run, None)

    async def add_to(self, plan: CommandPlan) -> None:
        """Add to a dry run what the children of its runs would write right after the commit, and theirs."""
        left = MAX_PREVIEWED
        for unit in plan.units:  # each child that follows adds one
            for job in unit.jobs:
                async for row, state, reason in self._followers(unit, job):
                    if not left:
                        return
                    left -= 1
                    try:
                        await self._follow_one(row, row.parent or "", state, reason)
                    except UnreadableRecord:
                        continue

    async def _followers(self, unit: Unit, job: NewJob) -> AsyncIterator[tuple[RunRow, str, str | None]]:
        """Yield the open children that an internal job would change, their new state and the reason."""
        if job.name == FOLLOW_PARENT and unit.run is not None:
            state = {CANCELLED: STOPPED, PAUSED: PAUSED}.get(unit.run.status, RUNNING)
            parent, call, reason = unit.run.id, None, None
        elif job.name == CANCEL_RUN:
            found = msgspec.json.decode(job.payload, type=CallCancellation)
            wait = await self._store.wait_row(found.call)
            if wait is None:
                return
            parent, call, state, reason = wait.run, found.call, STOPPED, found.reason
        else:
            return
        async for row in self._children(parent):
            if row.call is not None and not row.closed and call in (None, row.call):
                yield row, state, reason

    async def _follow_call(
        self, parent: str, call: str | None, *, only: str | None = None, reason: str | None = None
    ) -> None:
        """Bring open children to the state of their parent and of their call, until neither has changed meanwhile."""
        while True:
            before = await self._parent_state(parent, call)
            if only is not None:
                row = await self._store.run(only)
                await self._follow_one(row, parent, before, reason)
            elif before != RUNNING or call is None:
                await self._follow_all(parent, call, before, reason)
            if await self._parent_state(parent, call) == before:
                return

    async def _follow_all(self, parent: str, call: str | None, state: str, reason: str | None) -> None:
        rows: list[RunRow] = []
        async for row in self._children(parent):
            if row.call is None or row.closed or (call is not None and row.call != call):
                continue
            rows.append(row)
            if len(rows) == PAGE:
                await asyncio.gather(*(self._follow_one(one, parent, state, reason) for one in rows))
                rows = []
        await asyncio.gather(*(self._follow_one(one, parent, state, reason) for one in rows))

    async def _follow_one(self, row: RunRow | None, parent: str, state: str, reason: str | None) -> None:
        if row is None or row.closed:
            return
        if state == ENDED:
            state = await self._parent_state(parent, row.call)
        commands = self._engines().of_run(row).commands
        if state == STOPPED:
            await commands.cancel(row.id, reason or f"its parent {parent} was cancelled")
        elif state == PAUSED:
            await commands.pause(row.id, f"its parent {parent} was paused", by=parent)
        elif row.status == PAUSED:
            await commands.resume(row.id, f"its parent {parent} was resumed", by=parent)

    async def _parent_state(self, parent: str, call: str | None) -> str:
        row = await self._store.run(parent)
        wait = await self._store.wait_row(call) if call is not None else None
        if call is None and row is not None and row.closed and row.status != CANCELLED:
            return ENDED
        return _state_of_children(row, wait)

    async def _children(self, parent: str) -> Any:
        before: str | None = None
        while rows := await self._store.runs(keys=(parent_key(parent),), before=before, limit=PAGE):
            for row in rows:
                yield row
            if len(rows) < PAGE:
                return
            before = rows[-1].id

    async def _submit_all(self, units: Sequence[Unit]) -> None:
        await asyncio.gather(*map(self._submit, units))

    async def _submit(self, unit: Unit) -> None:
        await self._runtime.committer.submit(CommitRequest(lambda _v, _r: unit, outlasts_outage=True))


STOPPED, PAUSED, RUNNING = "stopped", "paused", "running"
ENDED = "ended"  # each child follows its call: one that was abandoned goes on


def _state_of_children(parent: RunRow | None, wait: WaitRow | None) -> str:
    """Return the state that the children of a call follow. One that was abandoned outlives a parent that ends, but not
    one that is cancelled."""
    if parent is None or parent.status == CANCELLED or (wait is not None and not _wants_children(wait)):
        return STOPPED
    if parent.closed:
        return RUNNING if wait is not None and wait.state == EXPIRED else STOPPED
    return PAUSED if parent.status == PAUSED else RUNNING


def _wants_children(wait: WaitRow) -> bool:
    """Return whether the children of a call may run."""
    return wait.state == PENDING or (wait.state == EXPIRED and read_body(wait).abandon)
