"""Routes of plain jobs: jobs whose key or rate key is a function of another language.

`enqueue` cannot call such a function. It commits a route, an internal job with everything that the jobs are built from.
A worker calls the functions, and the route's end and the new jobs are one commit.
"""

from __future__ import annotations

import msgspec

from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.errors import ConfigError, Permanent, RunnerLost, StoreError, UnknownQueue
from ..core.ids import check_job_id
from ..core.payload import DECODE_ERRORS, unpack
from ..core.retry import Backoff, RetryPolicy
from ..handlers.handler import Handler
from ..ports.unit import DELIVERIES, ROUTE_JOB, Claim, Completed, Unit
from ..worker.outcomes import Success
from ..worker.routes import record_own_id
from .engine import InternalJobWork, JobOptions, read_options
from .job_builder import JobPlan

ROUTE_RETRY = RetryPolicy(attempts=1_000, backoff=Backoff("exponential", 200, 60_000))
NOT_ITS_FAULT = (RunnerLost, ConfigError, StoreError, UnknownQueue)  # another attempt, or another worker, may do it


_decode_plans = msgspec.json.Decoder(list[JobPlan]).decode


class JobRouteWork(InternalJobWork):
    """One claim of a route of plain jobs."""

    def __init__(self, runtime: Runtime, claim: Claim) -> None:
        claim, options = read_options(claim)
        super().__init__(runtime, claim, Handler(ROUTE_JOB, self._evaluate, DELIVERIES, ROUTE_RETRY), options)
        self._runtime = runtime
        self._plans: list[JobPlan] = []
        self.routed: dict[str, str] = {}

    async def _evaluate(self) -> None:
        try:
            plans = _decode_plans(self.claim.payload)
        except DECODE_ERRORS as problem:
            raise Permanent(f"the input of the internal job {ROUTE_JOB!r} cannot be read: {problem}") from problem
        self.routed.clear()
        self._plans = [await self._complete(plan) for plan in plans]

    async def _complete(self, plan: JobPlan) -> JobPlan:
        """Return a plan with the keys that the functions of its handler return."""
        handler = self._runtime.registry().job(plan.queue, plan.name)
        if handler is None:
            raise UnknownQueue(f"this worker has no handler for job {plan.name!r} of queue {plan.queue!r}")
        value = unpack(bytes(plan.payload))
        try:
            key = await handler.evaluate_key(value) if plan.is_keyed else None
            rate_key = await handler.evaluate_rate_key(value)
            self.routed[plan.id] = check_job_id(key) if key is not None else plan.id
        except NOT_ITS_FAULT:
            raise
        except Exception as problem:
            raise Permanent(f"cannot enqueue job {plan.id!r}: {type(problem).__name__}: {problem}") from problem
        return msgspec.structs.replace(
            plan, id=self.routed[plan.id], rate_key=rate_key, options=self._with_parent(plan.options)
        )

    def _with_parent(self, options: JobOptions) -> JobOptions:
        """Return options that name the parent by its own id. Parents come before children."""
        up = options.parent
        if up is None or up.id not in self.routed:
            return options
        return msgspec.structs.replace(options, parent=msgspec.structs.replace(up, id=self.routed[up.id]))

    def on_success(self, success: Success) -> CommitRequest:  # noqa: ARG002
        now = self._clock.now_ms()
        unit = Unit(
            self._unit_id(),
            claim=self.claim,
            outcome=Completed(),
            jobs=[plan.build(self.bodies) for plan in self._plans],
            state=[write for id, own in self.routed.items() for write in record_own_id(id, own, now)],
            order_key=self._options.order_key,
        )
        return CommitRequest(lambda _v, _r: unit, outlasts_outage=True)
