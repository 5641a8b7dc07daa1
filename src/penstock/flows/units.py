"""Builds the parts of a unit from a decision: its run write, events and jobs."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ..core.events import RESERVED_PREFIXES, EventBodies, EventBody
from ..core.ids import event_route_id, step_job_id
from ..core.payload import DECODE_ERRORS, unpack
from ..handlers.registry import Flow
from ..handlers.trigger_table import TriggerTable
from ..ports.script_files import Deferred
from ..ports.store import JobRow
from ..ports.unit import DELIVERIES, READ_PARTS, ROUTE, Claim, NewEvent, NewJob, RunWrite, Started
from ..worker.child_runs import end_jobs
from ..worker.routes import build_step_route
from .decide import Decision, Route, StepStart
from .record_parts import PartLoad, parts_job_id
from .run_index import failed_keys, start_keys
from .run_record import CANCELLED, RunRecord, encode


class StepOptions(msgspec.Struct, omit_defaults=True, rename="camel"):
    """Options of a step's job, besides its input."""

    step: str
    n: int = 1
    redriven: int = 0
    attempts: int | None = None  # instead of those of the handler's retry policy
    trace: str | None = None  # the `traceparent` of what started it


decode_options = msgspec.json.Decoder(StepOptions).decode


def guess_options(job: Claim | JobRow) -> StepOptions:
    """Return what the name and the id of a step's job tell of its options: its own ones cannot be decoded."""
    found = re.search(r"\.(\d{1,9})(?:\.redrive-(\d{1,9}))?$", job.job if isinstance(job, Claim) else job.id)
    return StepOptions(job.name, int(found[1]), int(found[2] or 0)) if found is not None else StepOptions(job.name)


def read_options(job: Claim | JobRow) -> StepOptions:
    """Return the options of a step's job, or what its name and its id tell of them."""
    try:
        return decode_options(job.opts)
    except DECODE_ERRORS:
        return guess_options(job)


def public_kind(kind: str) -> str | None:
    """Return the kind if other runs may wait for it; None for kinds that the engine reserves."""
    return None if kind.startswith(RESERVED_PREFIXES) else kind


class UnitBuilder:
    """Builds the parts of a unit from decisions about one run."""

    def __init__(self, run: str, table: TriggerTable, flow: Flow | None, bodies: EventBodies, now: int) -> None:
        self._run = run
        self._table = table
        self._flow = flow
        self._encode = bodies.encode
        self._encode_emitted = bodies.encode_emitted
        self._stream = bodies.flow(run)
        self._now = now
        self.trace: str | None = None  # of the attempt that starts steps; None: they join the trace of the run

    def run_write(self, decision: Decision, version: int) -> RunWrite:
        record = decision.record
        return RunWrite(
            self._run,
            version,
            encode(record),
            record.flow,
            record.display_status,
            record.closed,
            record.paused,
            record.status == CANCELLED,
            keys=self._keys(record, version),
            parent=record.parent,
        )

    def _keys(self, record: RunRecord, version: int) -> tuple[str, ...]:
        if version == 0:
            return start_keys(self._run, record)
        return failed_keys(record.failures) if record.failures else ()

    def events(self, decision: Decision) -> list[NewEvent]:
        return [self._event(body) for body in decision.events]

    def _event(self, body: EventBody) -> NewEvent:
        kind = public_kind(body.kind)
        if kind is None:
            return NewEvent(self._stream, self._encode(body))
        redacted, original = self._encode_emitted(body)
        return NewEvent(self._stream, redacted, kind, original)

    def jobs(self, decision: Decision, due: int = 0, version: int = 0) -> list[NewJob]:
        """Return the jobs of the steps that start and, if the run has ended, what tells the run that called it."""
        jobs = [*decision.jobs, *(self._job(start, decision.record, due) for start in decision.starts)]
        jobs += [self._route_job(route) for route in decision.routes]
        jobs += [self._parts_job(load) for load in decision.loads]
        record = decision.record
        if record.parent is not None and record.closed:
            jobs += end_jobs(self._run, version, record.parent)
        return jobs

    def _route_job(self, route: Route) -> NewJob:
        return NewJob(event_route_id(self._run, route.n), DELIVERIES, ROUTE, encode(route), run=self._run)

    def _parts_job(self, load: PartLoad) -> NewJob:
        return NewJob(parts_job_id(self._run, load.n), DELIVERIES, READ_PARTS, encode(load), run=self._run)

    def _job(self, start: StepStart, record: RunRecord, due: int) -> NewJob:
        step = self._table.steps[start.step]
        id = step_job_id(self._run, start.step, start.n)
        priority, delay_ms, attempts = step.priority or record.priority, step.delay_ms, None
        if (options := start.options) is not None:
            priority = options.priority if options.priority is not None else priority
            delay_ms = options.delay_ms if options.delay_ms is not None else delay_ms
            attempts = options.attempts
        return self.job(
            id,
            start.step,
            step.queue,
            start.input,
            StepOptions(start.step, start.n, attempts=attempts, trace=self.trace or record.trace),
            record,
            start.cause,
            priority=priority,
            due=due or (self._now + delay_ms if delay_ms else 0),
            shown=start.input if start.has_mapped_input else None,
        )

    def job(
        self,
        id: str,
        step: str,
        queue: str,
        input: bytes,
        options: StepOptions,
        record: RunRecord,
        cause: str,
        *,
        priority: int = 0,
        due: int = 0,
        scope: str | None = None,
        shown: bytes | None = None,
    ) -> NewJob:
        """Build the job of a step instance, with the `step.started` event that its claim appends.

        If its rate key is a function of another language, the job is a route that adds it."""
        meta: dict[str, Any] = {"jobId": id, "causationId": cause, "queue": queue}
        if options.n > 1:
            meta["n"] = options.n
        data = msgspec.Raw(b'{"input":' + shown + b"}") if shown is not None else None
        corr = record.event_correlation(self._run)
        head = self._encode(EventBody("step.started", step=step, correlation_id=corr, data=data, meta=meta))
        job = NewJob(
            id,
            queue,
            step,
            input,
            priority,
            due,
            self._run,
            scope,
            encode(options),
            Started(self._stream, head[:-2] + b","),
        )
        definition = self._flow.steps.get(step) if self._flow is not None else None
        if definition is None or definition.handler.rate_key is None:
            return job
        try:
            return msgspec.structs.replace(job, rate_key=definition.handler.make_rate_key(unpack(input)))
        except Deferred:
            return build_step_route(job)
