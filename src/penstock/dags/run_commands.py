"""Commands on runs of dags from outside: start, emit, pause, resume, cancel, retry. Each commits one unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..commit.command_sink import CommandSink
from ..commit.committer import CommitRequest
from ..core.errors import DagInactive, RunError, UnknownDag, UnknownRun, UnreadableRecord
from ..core.event_tags import add_tags
from ..core.events import EventBody
from ..core.ids import check_id, step_job_id
from ..core.near_match import did_you_mean
from ..core.payload import pack
from ..core.text import shorten
from ..core.trace_context import current_trace
from ..durable.wait_records import build_cancelled_events, read_body
from ..flows.run_commands import MAX_WAITS_READ, RunClosed
from ..flows.run_record import FAILED, RUNNING
from ..ports.store import RunRow, WaitRow
from ..ports.unit import (
    DAG,
    Committed,
    Conflict,
    NewEvent,
    Receipt,
    Refused,
    RunParent,
    ScheduleMove,
    SettleWait,
    StateWrite,
    Unit,
)
from ..worker.child_runs import follow_jobs
from . import run_record as records
from .decide import Decider, Decision
from .definition import Dag
from .engine import DagEngine
from .plan import Plan
from .run_record import DagRecord, list_bits
from .units import input_key

NO_PLAN = Plan(Dag("", ()), 0)  # for decisions that start no node: a run whose dag is gone can be cancelled


class DagCommands:
    """Starts runs of dags and acts on them, through one sink."""

    def __init__(self, engine: DagEngine, sink: CommandSink) -> None:
        self._engine = engine
        self._sink = sink
        self._store = engine.runtime.store

    async def start(
        self,
        dag: str,
        run: str,
        input: bytes,
        *,
        version: int | None = None,
        correlation_id: str | None = None,
        priority: int = 0,
        due: int = 0,
        tags: dict[str, str] | None = None,
        parent: str | None = None,
        link: RunParent | None = None,
        replay_of: str | None = None,
        move: ScheduleMove | None = None,
        also: Sequence[NewEvent] = (),
    ) -> bool:
        """Start a run with the newest version of a dag, or another one, and append the events `also`. Return False if a
        run with that id exists, or if another scheduler has moved the schedule."""
        engine = self._engine
        summary = await engine.catalog.get(dag)
        if not summary.is_active:
            raise DagInactive(f"dag {dag!r} is deactivated; activate it: `penstock dags activate {dag}`")
        plan = await engine.catalog.plan(dag, summary.latest if version is None else version)
        unit_id, trace = engine.new_unit_id(), current_trace.get()

        def build(found: int, data: bytes | None) -> Unit | Receipt:
            if found:
                return Conflict(found, data)
            record = DagRecord(
                dag,
                plan.version,
                correlation_id or run,
                engine.clock.now_ms(),
                priority=priority,
                tags=tags or {},
                parent=link,
                trace=trace,
            )
            decision = engine.decider(run, record, plan).on_start(input, parent or "start", parent, replay_of)
            builder = engine.unit_builder(run, plan)
            return Unit(
                unit_id,
                run=builder.run_write(decision, 0),
                events=[*also, *builder.events(decision)],
                statuses=builder.statuses(decision),
                jobs=builder.jobs(decision, due),
                schedule=move,
                state=[StateWrite(input_key(run), input)] if plan.keeps_input else [],
            )

        receipt = await self._sink.submit(CommitRequest(build, run=run))
        if isinstance(receipt, Conflict):
            if receipt.record is not None and (other := records.decode(receipt.record, run).dag) != dag:
                raise RunError(f"run {run!r} already exists and belongs to {other!r}, not {dag!r}; use another key")
            return False
        return not isinstance(receipt, Refused)

    async def emit(self, run: str, kind: str, data: Any, *, key: str | None = None, tags: Sequence[str] = ()) -> bool:
        """Append an event to a run: its nodes may wait for it. Return False if its key was used before."""
        packed = pack(data, f"the data of {kind}")
        unit_id, trace = self._engine.new_unit_id(), current_trace.get()
        row = await self.row(run)

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = records.decode(data, run) if data is not None else None
            if record is None:
                raise UnknownRun(f"no run with id {run!r} in this store")
            if record.closed:
                raise RunClosed(f"run {run!r} is {record.status} and cannot receive {kind!r}")
            meta = add_tags({"causationId": f"emit-{unit_id}"}, tags)
            if trace is not None:
                meta["traceparent"] = trace
            shown = record.event_correlation(run)
            body = EventBody(kind, correlation_id=shown, data=msgspec.Raw(packed), meta=meta)
            decision = self._engine.decider(run, record, NO_PLAN).on_event(body)
            builder = self._engine.unit_builder(run, NO_PLAN)
            return Unit(
                unit_id,
                run=builder.run_write(decision, version),
                events=builder.events(decision),
                once_key=f"{run}/{key}" if key is not None else None,
            )

        receipt = await self._sink.submit(CommitRequest(build, run=run, version=row.version, record=row.record))
        return not isinstance(receipt, Refused)

    async def cancel(self, run: str, reason: str) -> bool:
        """Cancel a run and what it waits for. Return False if it has already ended."""
        while True:
            pending = await self._pending_waits(run)
            waits = [SettleWait(row.id, "cancelled") for row in pending]
            events = [event for row in pending for event in self._build_cancelled(row, reason)]
            receipt = await self._decide(
                run, lambda decider, _: decider.on_cancel(reason), waits, events, may_replace_record=True
            )
            if not isinstance(receipt, Refused):
                return isinstance(receipt, Committed)
            # One of the waits was resolved or has expired meanwhile: read them again.

    async def pause(self, run: str, reason: str, *, by: str | None = None) -> bool:
        """Pause a run: no more of its nodes are claimed. Return False if it is already paused or has ended."""
        return isinstance(
            await self._decide(run, lambda decider, record: None if record.paused else decider.on_pause(reason, by)),
            Committed,
        )

    async def resume(self, run: str, reason: str, *, by: str | None = None) -> bool:
        """Resume a paused run. Return False if it is not paused or, with `by`, if something else has paused it."""
        ready = await self._resolved_nodes(run)

        def decide(decider: Decider, record: DagRecord) -> Decision | None:
            is_meant = record.paused and (by is None or record.paused_by == by)
            return decider.on_resume(reason, ready) if is_meant else None

        return isinstance(await self._decide(run, decide), Committed)

    async def retry(self, run: str, node: str | None = None) -> list[str]:
        """Run the failed nodes of a run again, or one of them, and return their new jobs."""
        row = await self.row(run)
        record = records.decode(row.record, run)
        plan = await self._plan(record)
        failed = [plan.nodes[n].id for n in list_bits(record.failed)]
        if node is not None and node not in failed:
            hint = did_you_mean(node, failed) or f"failed nodes: {', '.join(failed) or 'none'}"
            raise RunError(f"node {shorten(node)} of run {run!r} has not failed; {hint}")
        if not failed or record.status not in (FAILED, RUNNING):
            raise RunError(f"run {run!r} is {record.display_status} and has no failed node to retry")
        jobs = [await self._retry_node(run, plan, plan.index[id]) for id in ([node] if node is not None else failed)]
        return [job for job in jobs if job is not None]

    async def _retry_node(self, run: str, plan: Plan, node: int) -> str | None:
        """Enqueue a failed node again; None if another call did it first."""
        unit_id, row = self._engine.new_unit_id(), await self.row(run)
        before = await self._failed_job(run, plan, node, records.decode(row.record, run))

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = records.decode(data, run) if data is not None else None
            if record is None:
                return Conflict(version, data)
            n = record.job_number(node) + 1
            job = step_job_id(run, plan.nodes[node].id, n)
            decision = self._engine.decider(run, record, plan).on_retry_failed(node, job)
            if decision is None:
                return Conflict(version, data)
            builder = self._engine.unit_builder(run, plan)
            return Unit(
                unit_id,
                run=builder.run_write(decision, version),
                events=builder.events(decision),
                statuses=builder.statuses(decision),
                jobs=[builder.job(node, n, before, record, f"retry-{unit_id}")],
            )

        receipt = await self._sink.submit(CommitRequest(build, run=run, version=row.version, record=row.record))
        if not isinstance(receipt, Committed):
            return None
        now = records.decode((await self.row(run)).record, run)
        return step_job_id(run, plan.nodes[node].id, now.job_number(node))

    async def _failed_job(self, run: str, plan: Plan, node: int, record: DagRecord) -> bytes:
        """Return the input of the newest job of a node."""
        id = step_job_id(run, plan.nodes[node].id, record.job_number(node))
        job = await self._store.job(id)
        if job is None:
            raise RunError(f"job {id!r} is gone, and the input of its node with it; start a new run")
        return job.payload

    async def row(self, run: str) -> RunRow:
        """Return the row of a run of a dag."""
        row = await self._store.run(check_id(run, "run id"))
        if row is None:
            raise UnknownRun(
                f"no run with id {run!r} in this store; run `penstock runs` to see the runs, and check the URL"
            )
        if row.kind != DAG:
            raise RunError(f"run {run!r} is of kind {row.kind!r}, not a run of a dag")
        return row

    async def _plan(self, record: DagRecord) -> Plan:
        return await self._engine.catalog.plan(record.dag, record.version)

    async def _resolved_nodes(self, run: str) -> list[str]:
        """Return the nodes that the record has as waiting and that wait for nothing any more."""
        recorded = records.decode((await self.row(run)).record).waiting
        waits = await self._store.waits(run, limit=MAX_WAITS_READ) if recorded else []
        if len(waits) == MAX_WAITS_READ:
            return []  # there may be more
        pending = {body.step for body in map(read_body, waits)}
        return [node for node in recorded if node not in pending]

    async def _decide(
        self,
        run: str,
        decide: Callable[[Decider, DagRecord], Decision | None],
        waits: Sequence[SettleWait] = (),
        events: Sequence[NewEvent] = (),
        *,
        may_replace_record: bool = False,
    ) -> Receipt:
        """Commit a decision about an open run that starts no node. Return a Conflict if it has ended or there is
        nothing to decide.

        A record that cannot be read is replaced if the decision needs nothing of it."""
        unit_id = self._engine.new_unit_id()
        row = await self.row(run)
        plan = await self._find_plan(row)

        def decode(data: bytes) -> DagRecord:
            try:
                return records.decode(data, run)
            except UnreadableRecord:
                if not may_replace_record:
                    raise
                return records.replace_record(row)

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = decode(data) if data is not None else None
            if record is None or record.closed:
                return Conflict(version, data)
            decision = decide(self._engine.decider(run, record, NO_PLAN), record)
            if decision is None:
                return Conflict(version, data)
            builder = self._engine.unit_builder(run, NO_PLAN)
            jobs = builder.jobs(decision, version=version) + follow_jobs(run, version, record.has_called)
            return Unit(
                unit_id,
                run=builder.run_write(decision, version),
                events=[*events, *builder.events(decision)],
                statuses=self._engine.unit_builder(run, plan).statuses(decision),
                waits=list(waits),
                jobs=jobs,
            )

        return await self._sink.submit(CommitRequest(build, run=run, version=row.version, record=row.record))

    async def _find_plan(self, row: RunRow) -> Plan:
        """Return the plan of a run; one without nodes if it, or the record, cannot be read."""
        try:
            return await self._plan(records.decode(row.record))
        except (UnknownDag, UnreadableRecord):
            return NO_PLAN

    async def _pending_waits(self, run: str) -> list[WaitRow]:
        """Return the waits of a run that can be read. The store cancels the others without events."""
        found: list[WaitRow] = []
        for row in await self._store.waits(run, limit=MAX_WAITS_READ):
            try:
                read_body(row)
            except UnreadableRecord:
                continue
            found.append(row)
        return found

    def _build_cancelled(self, row: WaitRow, reason: str) -> list[NewEvent]:
        now = self._engine.clock.now_ms()
        return build_cancelled_events(row, read_body(row), now, self._engine.bodies, reason)
