"""Routes: subscriptions whose `when` or `map` is a function of another language.

A decision waits for nothing, so it cannot call such a function. The commit that meets one adds a job of the run
instead, in the same unit. A worker evaluates the function and decides: the job's end and what it starts are one commit.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import msgspec

from ..commit.committer import CommitRequest
from ..core.errors import ConfigError, RunnerLost, UnknownStep
from ..core.json_match import contains
from ..core.payload import pack
from ..core.retry import Backoff, RetryPolicy
from ..handlers.handler import Handler
from ..handlers.registry import Flow
from ..handlers.subscriptions import Subscription, read_mapped
from ..handlers.trigger_table import TriggerTable
from ..ports.unit import DELIVERIES, ROUTE, Claim, Completed, Dead, Outcome, Released, RetryAt, Unit
from ..worker.outcomes import Failure, Interruption, JobReturn, Success, pack_record
from .conditions import find_subscription, make_arguments
from .decide import Decider, Decision, MappedInput, Route, RoutedEvent
from .run_record import RunRecord
from .step_work import StepWork

if TYPE_CHECKING:
    from .engine import FlowEngine

RETRY = RetryPolicy(attempts=1_000, backoff=Backoff("exponential", 200, 60_000))


class RouteWork(StepWork):
    """One claim of a route. It appends no event of its own: the flow looks as if the decision had been made at once."""

    def __init__(self, engine: FlowEngine, claim: Claim, record: RunRecord, table: TriggerTable, flow: Flow | None):
        handler = Handler(ROUTE, self._evaluate, DELIVERIES, RETRY, dead_letters=False)
        super().__init__(engine, claim, record, table, flow, handler, 1)
        self._route = msgspec.json.decode(claim.payload, type=Route)
        self._routed = RoutedEvent(self._route)

    async def _evaluate(self) -> None:
        route = self._route
        subscription = find_subscription(self._flow, route.step, route.kind)
        if subscription is None:
            raise UnknownStep(
                f"no step {route.step!r} of flow {self.flow!r} here that listens to {route.kind!r}; add its file, or "
                "run a worker that has it"
            )
        try:
            self._routed = await self._call(subscription)
        except (RunnerLost, ConfigError):  # not the function's fault: another attempt, or another worker, may do it
            raise
        except Exception as problem:
            self._routed = RoutedEvent(route, problem=problem)

    async def _call(self, subscription: Subscription) -> RoutedEvent:
        route, data = self._route, msgspec.json.decode(self._route.data)
        arguments = make_arguments(self._run, self.flow or "", self.correlation_id, route.kind, data)
        when = subscription.when
        matches = contains(data, when) if not callable(when) and when is not None else True
        if callable(when):
            matches = bool(await _settle(when(*arguments)))
        if not matches:
            return RoutedEvent(route)
        if subscription.map is None:
            return RoutedEvent(route, MappedInput(bytes(route.data)))
        value, options = read_mapped(await _settle(subscription.map(*arguments)), subscription.has_options)
        return RoutedEvent(
            route, MappedInput(pack(value, f"the mapped input of {route.step}"), options), is_mapped=True
        )

    def on_success(self, success: Success) -> CommitRequest:
        return self._request(success.output, self._decide, Completed(success.result), success)

    def _decide(self, decider: Decider) -> Decision:
        return decider.on_routed(self._routed)

    def on_failure(self, failure: Failure) -> CommitRequest:
        error = pack_record(msgspec.to_builtins(failure.error))
        if failure.retry_in_ms is not None:
            due = self._engine.clock.now_ms() + failure.retry_in_ms
            return self._request(failure.output, lambda _: None, RetryAt(due, error), failure)
        self._routed = RoutedEvent(self._route, problem=RunnerLost(failure.error.error))
        return self._request(failure.output, self._decide, Dead(error), failure)

    def on_interruption(self, interruption: Interruption) -> CommitRequest:
        return self._release(Released(gives_attempt_back=not interruption.is_counted))

    def on_return(self, returned: JobReturn) -> CommitRequest:
        return self._release(Released(self._engine.clock.now_ms() + returned.delay_ms))

    def _release(self, outcome: Outcome) -> CommitRequest:
        unit = Unit(self._engine.new_unit_id(), claim=self.claim, outcome=outcome)
        return CommitRequest(lambda _v, _r: unit, outlasts_outage=True)


async def _settle(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
