"""Forking a run of a dag: the events up to a point are copied, and the nodes that were open then start again.

The run keeps its version. The record is decided again from the events, and with it the data that later nodes need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..commit.committer import CommitRequest
from ..core.errors import CannotFork
from ..core.events import Event, EventBody
from ..core.redaction import REDACTED
from ..flows.fork import RunForker, copy_event, redacted_problem
from ..flows.run_record import RUNNING
from ..ports.store import RunRow
from ..ports.unit import DAG, Committed, Conflict, NewEvent, Receipt, StateWrite, Unit
from . import run_record as records
from .decide import Decider, Decision, EndedNode, KeptData, NodeStart
from .engine import DagEngine
from .plan import Plan
from .run_record import DagRecord, encode
from .units import input_key


class ReplayedNodes:
    """Rebuilds a run by deciding again on the first events of another one."""

    def __init__(self, old: str, new: str, record: DagRecord, plan: Plan, now: int) -> None:
        self.record = record
        self.copied: list[Event] = []
        self.open: dict[int, NodeStart] = {}
        self.last_open: str | None = None  # the last event after which a node was open
        self.kept: list[KeptData] = []
        self.results: dict[str, bytes] = {}
        self.input = b"null"
        self._old, self._new, self._plan, self._now = old, new, plan, now
        self._ended: dict[int, NodeStart] = {}

    def apply(self, event: Event) -> None:
        """Apply one more event."""
        if event.is_unreadable:
            raise CannotFork(
                f"run {self._old!r} cannot be forked here, because its event {event.id} cannot be read. Fork it at an "
                "earlier event"
            )
        data = event.data if isinstance(event.data, dict) else {}
        if event.kind == "flow.started":
            self.input = encode(data.get("input"))
            self._accept(lambda decider: decider.on_start(self.input, f"fork of {self._old}"))
        elif event.kind == "flow.cancelled":
            self._accept(lambda decider: decider.on_cancel(""))
            self.open.clear()
        elif event.step in self._plan.index:
            self._on_node(event, self._plan.index[event.step], data)
        self.copied.append(event)
        if self.open and not self.record.closed:
            self.last_open = event.id

    def _on_node(self, event: Event, node: int, data: dict[str, Any]) -> None:
        meta = event.meta or {}
        ended = EndedNode(node, f"{self._old}.{event.step}.1", meta.get("attempt", 1), meta.get("duration", 0))
        if event.kind == "node.completed":
            result, chosen = encode(data.get("result")), meta.get("next")
            self._check(result, f"the result of node {event.step!r}")
            self._accept(lambda decider: decider.on_completed(ended, result, chosen), node)
        elif event.kind == "node.skipped" and "attempt" in meta:  # else a decision about another node skipped it
            self._accept(lambda decider: decider.on_skipped(ended, data.get("reason", "")), node)
        elif event.kind == "node.failed" and data.get("willRetry") is False:
            error = {key: value for key, value in data.items() if key not in ("willRetry", "continued")}
            self._accept(lambda decider: decider.on_failed(ended, error, 0), node)
        elif event.kind == "node.redriven":
            self._accept(lambda decider: decider.on_retry_failed(node, ""))
            self.open[node] = self._ended[node]

    def _accept(self, decide: Callable[[Decider], Decision | None], ended: int | None = None) -> None:
        decision = decide(Decider(self._new, self.record, self._plan, self._now))
        if decision is None:
            return  # a node that had ended before: another worker reported it late
        self.record = decision.record
        self.kept += decision.kept
        self.results |= decision.results
        if ended is not None:
            self._ended[ended] = self.open.pop(ended)
        for start in decision.starts:
            self.open[start.node] = start

    def finish(self, at: str) -> None:
        """Raise CannotFork if no node is left to run."""
        if self.record.closed or not self.open:
            hint = f"; fork it at {self.last_open} or earlier" if self.last_open is not None else ""
            raise CannotFork(
                f"run {self._old!r} cannot be forked at event {at}, because no node was left to run after it{hint}"
            )
        self._check(self.input, "the input of the run")
        self.record.again = {}  # the jobs of the new run start at 1

    def _check(self, data: bytes, what: str) -> None:
        if REDACTED.encode() in data:
            raise CannotFork(redacted_problem(self._old, what))


class DagForker(RunForker):
    """Starts runs of dags from the history of others."""

    def __init__(self, engine: DagEngine) -> None:
        super().__init__(engine)  # type: ignore[arg-type]
        self._dags = engine

    def _stream(self, run: str) -> str:
        return self._dags.bodies.run(DAG, run)

    async def fork_dag(self, row: RunRow, at: str, new: str) -> None:
        """Start the run `new` in the state of `row` just after the event `at`. Forking again changes nothing."""
        events = await self._events(row.id, at)
        old = records.decode(row.record, row.id)
        plan = await self._dags.catalog.plan(old.dag, old.version)
        correlation = old.correlation_id if old.correlation_id != row.id else new
        now = self._dags.clock.now_ms()
        record = DagRecord(old.dag, old.version, correlation, now, priority=old.priority, tags=old.tags)
        past = ReplayedNodes(row.id, new, record, plan, now)
        for event in events:
            past.apply(event)
        past.finish(events[-1].id)
        state = await self._state(row.id, new, events[-1].seq)
        unit = self._fork_unit(past, plan, row.id, events[-1].id, new, state)
        receipt = await self._sink.submit(CommitRequest(lambda version, _: _if_new(version, unit), run=new))
        if not isinstance(receipt, Committed):
            await self._check_same(row.id, events[-1].id, new)

    def _fork_unit(self, past: ReplayedNodes, plan: Plan, old: str, at: str, new: str, state: list[StateWrite]) -> Unit:
        record, stream = past.record, self._stream(new)
        data = {"from": old, "at": at, "status": RUNNING, "version": str(record.version)}
        forked = EventBody("flow.forked", correlation_id=record.event_correlation(new), data=msgspec.Raw(encode(data)))
        decision = Decision(record, [forked], list(past.open.values()), past.kept, past.results)
        builder = self._dags.unit_builder(new, plan)
        # Copies are not delivered: the waits for those events have received the originals.
        copies = [NewEvent(stream, self._dags.bodies.encode(copy_event(event, old))) for event in past.copied]
        kept = builder.state(decision)
        if plan.keeps_input:
            kept.append(StateWrite(input_key(new), past.input))
        mine = [write for write in state if not write.key.startswith(f"run/{new}/nodes/")]
        return Unit(
            self._dags.new_unit_id(),
            run=builder.run_write(decision, 0),
            events=[*copies, *builder.events(decision)],
            jobs=builder.jobs(decision),
            state=[*mine, *kept],
        )


def _if_new(version: int, unit: Unit) -> Unit | Receipt:
    return unit if not version else Conflict(1, None)
