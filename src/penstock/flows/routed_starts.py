"""Routes of starts: runs whose idempotency key is a function of another language.

Who starts such a run cannot call the function. They commit a route, an internal job with everything that starts the
run, and return an id that stands for it. A worker calls the function, and the route's end and the first write of the
run are one commit. If a run of that key exists, the route ends and starts nothing.
"""

from __future__ import annotations

import msgspec

from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.errors import Permanent, RunError, UnknownFlow
from ..core.ids import check_id
from ..core.payload import DECODE_ERRORS, pack, unpack
from ..durable.journal import encode
from ..handlers.handler import Handler
from ..handlers.registry import Flow
from ..jobs.engine import InternalJobWork, read_options
from ..jobs.routed_jobs import NOT_ITS_FAULT, ROUTE_RETRY
from ..ports.unit import DELIVERIES, ROUTE_START, START, Claim, Completed, NewEvent, NewJob, Receipt, Unit
from ..worker.child_runs import ChildRuns, RunStart
from ..worker.outcomes import Success, pack_record
from ..worker.routes import AlsoEvent, RoutedStart, decode_start, record_own_id
from .engine import FlowEngine


class StartRouteWork(InternalJobWork):
    """One claim of a route of a start."""

    def __init__(self, runtime: Runtime, claim: Claim, engine: FlowEngine, children: ChildRuns) -> None:
        claim, options = read_options(claim)
        super().__init__(runtime, claim, Handler(ROUTE_START, self._evaluate, DELIVERIES, ROUTE_RETRY), options)
        self._engine = engine
        self._children = children
        self._routed: RoutedStart | None = None  # None: there is nothing to start
        self._key = ""
        self.routed: dict[str, str] = {}

    async def _evaluate(self) -> None:
        try:
            routed = decode_start(self.claim.payload)
        except DECODE_ERRORS as problem:
            raise Permanent(f"the input of the internal job {ROUTE_START!r} cannot be read: {problem}") from problem
        start = routed.start
        handler = self._engine.runtime.registry().flow(start.flow).definition.entry.handler
        try:
            key = await handler.evaluate_key(unpack(pack(start.input)), start.flow)
            self._key = check_id(key, "idempotency key") if key is not None else start.run
        except (*NOT_ITS_FAULT, UnknownFlow):
            raise
        except Exception as problem:
            await self._fail(start, problem)
        else:
            self._routed, self.routed = routed, {start.run: self._key}

    async def _fail(self, start: RunStart, problem: Exception) -> None:
        """Fail the call that waits for the run, or else this job: the error is then that of the id."""
        why = f"cannot start flow {start.flow!r}: {type(problem).__name__}: {problem}"
        if start.link is None or start.link.call is None:
            raise Permanent(why) from problem
        await self._children.fail_call(start, start.link.call, why)

    def on_success(self, success: Success) -> CommitRequest:  # noqa: ARG002
        if self._routed is None:
            unit = self._build_unit()
            return CommitRequest(lambda _v, _r: unit, outlasts_outage=True)
        start = self._routed.start
        if start.link is not None and start.link.call is not None:
            return self._start_called(msgspec.structs.replace(start, run=self._key), start.run)
        return self._start(self._routed, self._engine.runtime.registry().flow(start.flow))

    def _start_called(self, start: RunStart, id: str) -> CommitRequest:
        """Leave the rest to the job that starts a called run: it looks whether the call still waits."""
        unit = self._build_unit()
        unit.jobs = [NewJob(f"{self.claim.job}.run", DELIVERIES, START, pack_record(start))]
        unit.state = record_own_id(id, self._key, self._clock.now_ms())
        return CommitRequest(lambda _v, _r: unit, outlasts_outage=True)

    def _start(self, routed: RoutedStart, flow: Flow) -> CommitRequest:
        start, key = routed.start, self._key
        state = record_own_id(start.run, key, self._clock.now_ms())
        build_run = self._engine.commands.plan_start(
            flow,
            key,
            pack(start.input),
            correlation_id=start.correlation_id if routed.has_correlation else None,
            priority=start.priority,
            due=start.due,
            tags=start.tags,
            cause=routed.cause,
            parent=start.parent,
            link=start.link,
            also=[_with_run(event, key) for event in routed.also],
            trace=start.trace,
        )

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            if version:
                try:
                    self._engine.commands.check_same_flow(flow, key, data)
                except RunError as problem:
                    raise Permanent(str(problem)) from problem
                unit = self._build_unit()
            else:
                built = build_run(version, data)
                assert isinstance(built, Unit)
                unit = built
                unit.claim, unit.outcome = self.claim, Completed()
            unit.state = [*unit.state, *state]
            return unit

        return CommitRequest(build, run=key, outlasts_outage=True)

    def _build_unit(self) -> Unit:
        return Unit(self._unit_id(), claim=self.claim, outcome=Completed())


def _with_run(event: AlsoEvent, run: str) -> NewEvent:
    """Return an event that names the run that it started."""
    body = msgspec.json.decode(bytes(event.body))
    body["data"]["run"] = run
    return NewEvent(event.stream, encode(body))
