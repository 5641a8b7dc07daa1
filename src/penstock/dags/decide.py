"""Decisions about runs of dags: from a run record and a fact to the next record, events, nodes to start and data to
keep. Pure: no store, no clock, no randomness.

The cost of a fact depends on the edges of its node, not on the size of the dag.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from ..core.clock import to_iso
from ..core.events import EventBody
from ..core.retry import Backoff
from ..flows.run_record import CANCELLED, COMPLETED, FAILED, RUNNING
from ..ports.unit import NewJob
from .plan import Plan
from .run_record import (
    MAX_JOIN_DATA_BYTES,
    MAX_JOIN_PARENTS,
    MAX_JOINS_BYTES,
    DagRecord,
    FailedNode,
    Join,
    clear_bit,
    encode,
    first_bit,
    has_bit,
    set_bit,
)

SKIPPED_PARENTS = "every input was skipped"
NOT_CHOSEN = "not chosen by {}"


class NodeStart(msgspec.Struct):
    """A node to enqueue."""

    node: int
    n: int
    input: bytes  # of a join: the data that is not state of the run
    cause: str
    is_whole: bool = False  # of a join: no data of it is state of the run


class KeptData(msgspec.Struct):
    """Data of a node that another one needs later."""

    node: int
    reader: int
    data: bytes


class EndedNode(msgspec.Struct):
    """A node whose attempt ended, and its job."""

    node: int
    job: str
    attempt: int
    duration: int


class Decision(msgspec.Struct):
    """The next run record, the events to append, the nodes to start and the data to keep."""

    record: DagRecord
    events: list[EventBody] = []
    starts: list[NodeStart] = []
    kept: list[KeptData] = []
    results: dict[str, bytes] = {}  # of last nodes, to store as state of the run
    jobs: list[NewJob] = []  # of nodes that were started before


class Decider:
    """Decides for one run. Each `on_*` method takes one fact and changes the record passed to the constructor."""

    def __init__(self, run: str, record: DagRecord, plan: Plan, now: int) -> None:
        self._run = run
        self._record = record
        self._plan = plan
        self._now = now
        self._shown = record.event_correlation(run)
        self._events: list[EventBody] = []
        self._starts: list[NodeStart] = []
        self._kept: list[KeptData] = []
        self._results: dict[str, bytes] = {}
        self._jobs: list[NewJob] = []

    # Facts

    def on_start(self, input: bytes, cause: str, parent: str | None = None, replay_of: str | None = None) -> Decision:
        """Start the run: every node without inputs receives the run's input."""
        record, plan = self._record, self._plan
        data = {"name": record.dag, "input": msgspec.Raw(input), "version": str(record.version)}
        meta: dict[str, Any] = {"tags": record.tags} if record.tags else {}
        if parent is not None:
            meta["parent"] = parent
        if replay_of is not None:
            meta["replayOf"] = replay_of
        if (up := record.parent) is not None:
            meta |= {"root": up.root, **({"depth": up.depth} if up.depth else {})}
        self._append("flow.started", data, meta=meta or None)
        for n in plan.entries:
            self._start(n, input, cause)
        return self._decision()

    def on_completed(
        self, ended: EndedNode, data: bytes, chosen: Collection[str] | None = None, *, events: Iterable[EventBody] = ()
    ) -> Decision | None:
        """Complete a node. With `chosen`, only those of the nodes after it follow. None if the node is not open."""
        if not self._end(ended.node):
            return None
        self._events += events
        name = self._plan.nodes[ended.node].id
        meta = self._attempt_meta(ended)
        if chosen is not None:
            meta["next"] = sorted(chosen)
        self._append("node.completed", {"result": msgspec.Raw(data)}, name, meta)
        self._pass_on(ended.node, data, chosen, ended.job)
        self._settle(ended.job)
        return self._decision()

    def on_skipped(self, ended: EndedNode, reason: str) -> Decision | None:
        """Record that an executor skipped its node. None if the node is not open."""
        if not self._end(ended.node):
            return None
        self._append_skipped(ended.node, reason, self._attempt_meta(ended))
        self._skip_after(ended.node, ended.job)
        self._settle(ended.job)
        return self._decision()

    def on_failed(self, ended: EndedNode, error: dict[str, Any], max_attempts: int) -> Decision | None:
        """Fail a node for good. The nodes after it never start, unless it continues on failure: then they receive the
        error. None if the node is not open."""
        if not self._end(ended.node):
            return None
        node, record = self._plan.nodes[ended.node], self._record
        meta = {**self._attempt_meta(ended), "maxAttempts": max_attempts}
        data = {**error, "willRetry": False, **({"continued": True} if node.continue_on_fail else {})}
        self._append("node.failed", data, node.id, meta)
        if node.continue_on_fail:
            shown = {key: error[key] for key in ("error", "name", "code") if error.get(key) is not None}
            self._pass_on(ended.node, encode({"error": shown}), None, ended.job)
        else:
            record.failed = set_bit(record.failed, ended.node)
            text = str(error.get("error", ""))[:500]
            number = record.job_number(ended.node)
            record.remember_failure(FailedNode(node.id, number, text, error.get("code"), error.get("name")))
        self._settle(ended.job)
        return self._decision()

    def on_job(self, node: int, job: NewJob) -> Decision | None:
        """Add the job of a node that was started: its rate key is known now. None if the node is not open."""
        if not has_bit(self._record.open, node):
            return None
        self._jobs.append(job)
        return self._decision()

    def on_retry(
        self, ended: EndedNode, error: dict[str, Any], max_attempts: int, due: int, backoff: Backoff | None = None
    ) -> Decision | None:
        """Record the failure of an attempt that will be retried."""
        if not has_bit(self._record.open, ended.node):
            return None
        name, at = self._plan.nodes[ended.node].id, to_iso(due)
        self._record.unmark_waiting(name)
        meta: dict[str, Any] = {**self._attempt_meta(ended), "maxAttempts": max_attempts}
        if backoff is not None:
            meta["backoff"] = {"type": backoff.type, "delayMs": backoff.delay_ms}
        self._append("node.failed", {**error, "willRetry": True, "nextRetryAt": at}, name, meta)
        retry = {"reason": error.get("error", ""), "delayMs": max(due - self._now, 0)}
        self._append("node.retry", retry, name, {"attempt": ended.attempt + 1, "scheduledAt": at})
        return self._decision()

    def on_suspended(self, ended: EndedNode, has_called: bool = False) -> Decision | None:
        """Record that a node waits, and whether it called a run."""
        if not has_bit(self._record.open, ended.node):
            return None
        self._record.has_called = self._record.has_called or has_called
        self._record.mark_waiting(self._plan.nodes[ended.node].id)
        self._start_held(ended.job)
        return self._decision()

    def on_resumed(self, node: int) -> Decision | None:
        """Record that a waiting node runs again; None if the record has it so already."""
        return self._decision() if self._record.unmark_waiting(self._plan.nodes[node].id) else None

    def on_call(self) -> Decision | None:
        """Record that the run calls another one; None if the record has it so already."""
        if self._record.has_called:
            return None
        self._record.has_called = True
        return self._decision()

    def on_event(self, event: EventBody) -> Decision:
        """Append an event from outside. It starts no node; waits may match it."""
        self._events.append(event)
        return self._decision()

    def on_cancel(self, reason: str) -> Decision:
        """Cancel the run. Running attempts are notified; this commit drops the queued ones."""
        record = self._record
        record.status, record.paused, record.paused_by = CANCELLED, False, None
        record.open, record.open_count = b"", 0
        record.held, record.held_count = b"", 0
        record.waiting.clear()
        record.joins.clear()
        record.joins_bytes = 0
        if record.parent is not None:
            record.cancel_reason = reason[:500]
        self._append("flow.cancelled", {"reason": reason, "duration": self._duration_ms()})
        return self._decision()

    def on_pause(self, reason: str, by: str | None = None) -> Decision:
        """Pause the run. Running attempts may end; no other job of it is claimed."""
        self._record.paused, self._record.paused_by = True, by
        self._append("flow.paused", {"reason": reason})
        return self._decision()

    def on_resume(self, reason: str, ready: Collection[str] = ()) -> Decision:
        """Resume the run. The waits of the nodes `ready` were resolved meanwhile."""
        record = self._record
        record.paused, record.paused_by = False, None
        record.waiting = [node for node in record.waiting if node not in ready]
        self._append("flow.resumed", {"reason": reason, "status": record.status})
        return self._decision()

    def on_retry_failed(self, node: int, job: str) -> Decision | None:
        """Run a failed node again, and reopen the run. None if the node has not failed."""
        record, name = self._record, self._plan.nodes[node].id
        if record.status not in (RUNNING, FAILED) or not has_bit(record.failed, node):
            return None
        record.failed = clear_bit(record.failed, node)
        record.failed_count -= 1
        record.failures = [one for one in record.failures if one.step != name]
        record.again[node] = record.job_number(node) + 1
        record.open, record.open_count = set_bit(record.open, node), record.open_count + 1
        self._append("node.redriven", {"jobId": job}, name, {"jobId": job})
        if record.status == FAILED:
            record.status = RUNNING
            self._append("flow.reopened", {"step": name})
        return self._decision()

    # Passing on

    def _end(self, node: int) -> bool:
        """Take a node from the open ones; return False if it is not one: it has ended before."""
        record = self._record
        if not has_bit(record.open, node):
            return False
        record.open, record.open_count = clear_bit(record.open, node), record.open_count - 1
        record.unmark_waiting(self._plan.nodes[node].id)
        return True

    def _pass_on(self, node: int, data: bytes, chosen: Collection[str] | None, cause: str) -> None:
        """Pass the data of a node to the chosen ones of those after it, and skip the others."""
        plan = self._plan
        for reader in plan.readers[node]:
            self._kept.append(KeptData(node, reader, data))
        children = plan.children[node]
        if not children:
            self._results |= self._record.keep_result(plan.nodes[node].id, data, plan.last_count == 1)
        skipped = []
        for child in children:
            if chosen is None or plan.nodes[child].id in chosen:
                self._arrive(child, node, data, cause)
            elif self._arrive(child, node, None, cause):
                self._append_skipped(child, NOT_CHOSEN.format(plan.nodes[node].id))
                skipped.append(child)
        for child in skipped:
            self._skip_after(child, cause)

    def _skip_after(self, node: int, cause: str) -> None:
        """Skip the nodes after a skipped one whose other inputs were skipped too."""
        left = [node]
        while left:
            at = left.pop()
            for child in self._plan.children[at]:
                if self._arrive(child, at, None, cause):
                    self._append_skipped(child, SKIPPED_PARENTS)
                    left.append(child)

    def _arrive(self, child: int, parent: int, data: bytes | None, cause: str) -> bool:
        """Count one input of a node, None for a skipped one. Start the node with its last input; return whether it is
        to be skipped instead."""
        parents = self._plan.parents[child]
        if data is not None and self._plan.limit is not None:
            self._kept.append(KeptData(parent, child, data))
        if len(parents) == 1:
            if data is None:
                return True
            self._start(child, data, cause)
            return False
        join = self._record.joins.get(child)
        if join is None:
            join = self._record.joins[child] = Join(len(parents))
        join.missing -= 1
        join.is_live = join.is_live or data is not None
        if join.missing:
            if data is not None and self._plan.limit is None:
                self._keep_for_join(join, child, parent, data)
            return False
        del self._record.joins[child]
        self._record.joins_bytes -= sum(map(len, map(bytes, join.data.values())))
        if not join.is_live:
            return True
        if data is not None:
            join.data[self._plan.nodes[parent].id] = msgspec.Raw(data)
        self._start(child, encode(join.data), cause, join.is_whole)
        return False

    def _keep_for_join(self, join: Join, child: int, parent: int, data: bytes) -> None:
        """Keep the data of one input of a join: in the record if it is small, so that the job brings it."""
        record, is_small = self._record, len(data) <= MAX_JOIN_DATA_BYTES
        is_narrow = len(self._plan.parents[child]) <= MAX_JOIN_PARENTS
        if is_small and is_narrow and record.joins_bytes + len(data) <= MAX_JOINS_BYTES:
            join.data[self._plan.nodes[parent].id] = msgspec.Raw(data)
            record.joins_bytes += len(data)
            return
        join.is_whole = False
        self._kept.append(KeptData(parent, child, data))

    def _start(self, node: int, input: bytes, cause: str, is_whole: bool = False) -> None:
        record, limit = self._record, self._plan.limit
        if limit is not None:
            input = b"null"  # it is state of the run
            if self._is_full(limit):
                record.held, record.held_count = set_bit(record.held, node), record.held_count + 1
                return
        record.started = set_bit(record.started, node)
        record.open, record.open_count = set_bit(record.open, node), record.open_count + 1
        self._starts.append(NodeStart(node, 1, input, cause, is_whole and limit is None))

    def _is_full(self, limit: int) -> bool:
        return self._record.open_count - len(self._record.waiting) >= limit

    def _start_held(self, cause: str) -> None:
        """Start nodes that were held, the first ones of the definition first, while there is room."""
        record, limit = self._record, self._plan.limit
        while limit is not None and record.held_count and not self._is_full(limit):
            node = first_bit(record.held)
            record.held, record.held_count = clear_bit(record.held, node), record.held_count - 1
            self._start(node, b"null", cause)

    # Ending

    def _settle(self, cause: str) -> None:
        """Start nodes that were held; end the run once no node of it is open."""
        record = self._record
        self._start_held(cause)
        if record.open_count:
            return
        status = FAILED if record.failed_count else COMPLETED
        record.status, record.paused, record.paused_by = status, False, None
        if status == COMPLETED:
            data: dict[str, Any] = {"duration": self._duration_ms()}
            if (result := record.result()) is not None:
                data["result"] = msgspec.Raw(result)
            else:
                data["storedResults"] = record.stored_results
            self._append("flow.completed", data)
            return
        first = record.failures[0] if record.failures else FailedNode("", 0, f"{record.failed_count} nodes failed")
        failed = [msgspec.to_builtins(failure) for failure in record.failures]
        data = {"error": first.error, "step": first.step, "failed": failed, "duration": self._duration_ms()}
        self._append("flow.failed", data)

    def _duration_ms(self) -> int:
        return max(self._now - self._record.started_ms, 0)  # the store's clock may go back

    # Recording

    def _append_skipped(self, node: int, reason: str, meta: dict[str, Any] | None = None) -> None:
        self._append("node.skipped", {"reason": reason}, self._plan.nodes[node].id, meta)

    def _attempt_meta(self, ended: EndedNode) -> dict[str, Any]:
        return {"attempt": ended.attempt, "duration": ended.duration}

    def _append(self, kind: str, data: Any, node: str | None = None, meta: dict[str, Any] | None = None) -> None:
        self._events.append(EventBody(kind, None, None, node, None, self._shown, msgspec.Raw(encode(data)), meta))

    def _decision(self) -> Decision:
        return Decision(self._record, self._events, self._starts, self._kept, self._results, self._jobs)
