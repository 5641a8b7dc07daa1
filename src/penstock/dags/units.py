"""Builds the parts of a unit from a decision about a dag: its run write, events, jobs and kept data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..core.events import EventBodies, EventBody
from ..core.ids import step_job_id
from ..core.payload import unpack
from ..flows.run_index import correlation_key, failed_keys, tag_keys
from ..flows.run_record import CANCELLED
from ..flows.units import public_kind
from ..handlers.nodes import NodeHandler
from ..ports.script_files import Deferred
from ..ports.unit import DAG, DAG_QUEUE, JobStatus, NewEvent, NewJob, RunWrite, Started, StateWrite
from ..worker.child_runs import end_jobs, parent_key
from ..worker.routes import build_step_route
from .decide import Decision
from .definition import Node
from .plan import Plan
from .run_record import DagRecord, encode

STATUSES = {
    "node.completed": "completed",
    "node.failed": "failed",
    "node.skipped": "skipped",
    "node.retry": "delayed",
    "flow.started": "started",
    "flow.completed": "completed",
    "flow.failed": "failed",
    "flow.cancelled": "cancelled",
    "flow.paused": "paused",
    "flow.resumed": "started",
    "flow.reopened": "started",
}


class NodeProgress(msgspec.Struct, rename="camel"):
    """The status of a node, for readers of BullMQ's events."""

    event_type: str
    node_id: str
    node_status: str
    timestamp: int


class RunProgress(msgspec.Struct, rename="camel"):
    """The status of a run, for readers of BullMQ's events."""

    event_type: str
    workflow_status: str
    timestamp: int


class NodeOptions(msgspec.Struct, omit_defaults=True, rename="camel"):
    """Options of a node's job, besides its input."""

    node: str
    n: int = 1
    whole: bool = False  # of a join: its job has all of its input
    trace: str | None = None  # the `traceparent` of what started it


decode_options = msgspec.json.Decoder(NodeOptions).decode
FindExecutor = Callable[[Node], NodeHandler | None]


def data_prefix(run: str, node: str) -> str:
    """Return the prefix of the state keys with the data that a node reads. They are removed with the run."""
    return f"run/{run}/nodes/{node}/"


def input_key(run: str) -> str:
    """Return the state key of the run's input. No node has this name."""
    return f"run/{run}/nodes/.input"


def results_prefix(run: str) -> str:
    """Return the prefix of the state keys with the results of last nodes, if the record does not have them."""
    return f"run/{run}/nodes/.results/"


class UnitBuilder:
    """Builds the parts of a unit from decisions about one run."""

    def __init__(
        self, run: str, plan: Plan, executor: FindExecutor, bodies: EventBodies, now: int, shows_status: bool = False
    ) -> None:
        self._run = run
        self._plan = plan
        self._executor = executor
        self._bodies = bodies
        self._stream = bodies.run(DAG, run)
        self._now = now
        self.trace: str | None = None  # of the attempt that starts nodes; None: they join the trace of the run
        self._shows_status = shows_status

    def run_write(self, decision: Decision, version: int) -> RunWrite:
        record = decision.record
        return RunWrite(
            self._run,
            version,
            encode(record),
            record.dag,
            record.display_status,
            record.closed,
            record.paused,
            record.status == CANCELLED,
            kind=DAG,
            keys=run_keys(self._run, record) if version == 0 else failed_keys(record.failures),
            parent=record.parent,
        )

    def events(self, decision: Decision) -> list[NewEvent]:
        return [self._event(body) for body in decision.events]

    def _event(self, body: EventBody) -> NewEvent:
        kind = public_kind(body.kind)
        if kind is None:
            return NewEvent(self._stream, self._bodies.encode(body))
        redacted, original = self._bodies.encode_emitted(body)
        return NewEvent(self._stream, redacted, kind, original)

    def statuses(self, decision: Decision) -> list[JobStatus]:
        """Return what other programs see of a decision: the status of each node and of the run, as job progress."""
        plan = self._plan
        if not self._shows_status or not plan.nodes:
            return []
        kinds = {body.kind for body in decision.events}
        found = []
        for body in decision.events:
            status = STATUSES.get(body.kind)
            if status is None or (body.kind == "node.failed" and "node.retry" in kinds):
                continue
            n = plan.index.get(body.step, 0) if body.step is not None else plan.entries[0]
            if body.step is not None:
                data: Any = NodeProgress("node", plan.nodes[n].id, status, self._now)
            else:
                data = RunProgress("workflow", status, self._now)
            job = step_job_id(self._run, plan.nodes[n].id, decision.record.job_number(n))
            node = plan.nodes[n]
            found.append(JobStatus(self._queue_of(node, self._executor(node)), job, encode(data)))
        return found

    def _queue_of(self, node: Node, executor: NodeHandler | None) -> str:
        return executor.queue_name if executor is not None else self._plan.queues.get(node.type, DAG_QUEUE)

    def state(self, decision: Decision) -> list[StateWrite]:
        """Return the data that nodes leave for those that start later, and the results of last nodes."""
        ids = self._plan.nodes
        kept = [
            StateWrite(data_prefix(self._run, ids[kept.reader].id) + ids[kept.node].id, kept.data)
            for kept in decision.kept
        ]
        prefix = results_prefix(self._run)
        return kept + [StateWrite(prefix + node, data) for node, data in decision.results.items()]

    def jobs(self, decision: Decision, due: int = 0, version: int = 0) -> list[NewJob]:
        """Return the jobs of the nodes that start and, if the run has ended, what tells the run that called it."""
        record = decision.record
        jobs = [*decision.jobs]
        for start in decision.starts:
            node = self._plan.nodes[start.node]
            delay = node.delay_ms + (0 if self._plan.parents[start.node] else self._plan.dag.delay_ms)
            at = max(due, self._now) + delay if delay else due
            jobs.append(self.job(start.node, start.n, start.input, record, start.cause, at, start.is_whole))
        if record.parent is not None and record.closed:
            jobs += end_jobs(self._run, version, record.parent)
        return jobs

    def job(
        self, node: int, n: int, input: bytes, record: DagRecord, cause: str, due: int = 0, is_whole: bool = False
    ) -> NewJob:
        """Build the job of a node, with the `node.started` event that its claim appends.

        If its rate key is a function of another language, the job is a route that adds it."""
        definition = self._plan.nodes[node]
        executor = self._executor(definition)
        queue = self._queue_of(definition, executor)
        id = step_job_id(self._run, definition.id, n)
        meta: dict[str, Any] = {"jobId": id, "causationId": cause, "queue": queue, "type": definition.type}
        if n > 1:
            meta["n"] = n
        corr = record.event_correlation(self._run)
        head = self._bodies.encode(EventBody("node.started", step=definition.id, correlation_id=corr, meta=meta))
        job = NewJob(
            id,
            queue,
            definition.id,
            input,
            (executor.priority if executor is not None else 0) or record.priority or self._plan.dag.priority,
            due,
            self._run,
            step_job_id(self._run, definition.id, 1) if n > 1 else None,  # it continues with the memos of the first
            encode(NodeOptions(definition.id, n, is_whole, self.trace or record.trace)),
            Started(self._stream, head[:-2] + b","),
        )
        if executor is None or executor.rate_key is None:
            return job
        try:
            return msgspec.structs.replace(job, rate_key=executor.make_rate_key(unpack(input)))
        except Deferred:
            return build_step_route(job)


def restore_job(bodies: EventBodies, run: str, record: DagRecord, job: NewJob) -> NewJob:
    """Return an exported job with the `node.started` event that its claim appends. Raise msgspec.DecodeError if its
    options are not those of a node's job."""
    options = decode_options(job.opts)
    if job.id != step_job_id(run, options.node, options.n):
        raise msgspec.ValidationError(f"job {job.id!r} is not that of node {options.node!r}")
    meta: dict[str, Any] = {"jobId": job.id, "causationId": "import", "queue": job.queue}
    if options.n > 1:
        meta["n"] = options.n
    corr = record.event_correlation(run)
    head = bodies.encode(EventBody("node.started", step=options.node, correlation_id=corr, meta=meta))
    return msgspec.structs.replace(job, started=Started(bodies.run(DAG, run), head[:-2] + b","))


def run_keys(run: str, record: DagRecord) -> tuple[str, ...]:
    """Return the keys that a run is found by."""
    correlation = [correlation_key(record.correlation_id)] if record.correlation_id != run else []
    up = [parent_key(record.parent.run)] if record.parent is not None else []
    return (*up, *correlation, *tag_keys(record.tags), *failed_keys(record.failures))
