"""Routes of nodes whose executor has a rate key that is a function of another language. See flows.routing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..commit.committer import CommitRequest
from ..core.errors import ConfigError, RunnerLost, UnknownNodeType
from ..core.payload import unpack
from ..core.tracebacks import describe_error
from ..handlers.handler import Handler
from ..jobs.routed_jobs import ROUTE_RETRY
from ..ports.unit import DELIVERIES, ROUTE_STEP, Claim, Completed, Dead, Outcome, Released, RetryAt, Unit
from ..worker.outcomes import Failure, Interruption, JobReturn, Success, pack_record
from ..worker.routes import decode_step
from .decide import Decider, Decision, EndedNode
from .node_work import NodeWork
from .plan import Plan
from .run_record import DagRecord

if TYPE_CHECKING:
    from .engine import DagEngine


class NodeRouteWork(NodeWork):
    """One claim of the route of a node: it adds the node's job with its rate key, or fails the node."""

    def __init__(self, engine: DagEngine, claim: Claim, record: DagRecord, plan: Plan) -> None:
        self._routed = decode_step(claim.payload)
        handler = Handler(ROUTE_STEP, self._evaluate, DELIVERIES, ROUTE_RETRY, dead_letters=False)
        super().__init__(engine, claim, record, plan, plan.index[self._routed.name], handler, 1)
        self.step = self._routed.name
        self._rate_key: str | None = None
        self._problem: Exception | None = None

    async def _evaluate(self) -> None:
        node = self._plan.nodes[self._node]
        executor = self._engine.executor(node.type)
        if executor is None:
            raise UnknownNodeType(f"no executor for nodes of type {node.type!r} here; run a worker that has it")
        try:
            self._rate_key = await executor.evaluate_rate_key(unpack(bytes(self._routed.payload)))
        except (RunnerLost, ConfigError):
            raise
        except Exception as problem:
            self._problem = problem

    def _decide(self, decider: Decider) -> Decision | None:
        routed = self._routed
        if self._problem is None:
            return decider.on_job(self._node, routed.build(self._run, self._rate_key))
        why = describe_error(type(self._problem).__name__, str(self._problem))
        error = {"error": f"the rateKey function of {routed.name} raised {why}", "code": "rate_key_failed"}
        return decider.on_failed(EndedNode(self._node, routed.id, 1, 0), error, 1)

    def on_success(self, success: Success) -> CommitRequest:
        return self._request(success.output, self._decide, Completed(success.result), success)

    def on_failure(self, failure: Failure) -> CommitRequest:
        error = pack_record(msgspec.to_builtins(failure.error))
        if failure.retry_in_ms is not None:
            return self._release(RetryAt(self._engine.clock.now_ms() + failure.retry_in_ms, error))
        self._problem = RunnerLost(failure.error.error)
        return self._request(failure.output, self._decide, Dead(error), failure)

    def on_interruption(self, interruption: Interruption) -> CommitRequest:
        return self._release(Released(gives_attempt_back=not interruption.is_counted))

    def on_return(self, returned: JobReturn) -> CommitRequest:
        return self._release(Released(self._engine.clock.now_ms() + returned.delay_ms))

    def _release(self, outcome: Outcome) -> CommitRequest:
        unit = Unit(self._engine.new_unit_id(), claim=self.claim, outcome=outcome)
        return CommitRequest(lambda _v, _r: unit, outlasts_outage=True)
