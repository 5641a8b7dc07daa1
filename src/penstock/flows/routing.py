"""Jobs of the engine in a run: a decision waits for nothing, so what it must wait for is a job.

A route evaluates the `when` or `map` of a subscription, or the rate key of a step, that is a function of another
language. Another job reads parts of the run record that are kept beside it. The commit that needs one adds the job, in
the same unit. A worker does it and decides: the job's end and what it starts are one commit.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..commit.committer import CommitRequest
from ..core.errors import ConfigError, RunnerLost, UnknownFlow, UnknownStep
from ..core.json_match import contains
from ..core.payload import pack, unpack
from ..core.stored import read_stored
from ..core.tracebacks import describe_error
from ..handlers.handler import Handler
from ..handlers.registry import Flow
from ..handlers.subscriptions import Subscription, read_mapped
from ..handlers.trigger_table import TriggerTable
from ..jobs.routed_jobs import ROUTE_RETRY
from ..ports.unit import DELIVERIES, Claim, Completed, Dead, Outcome, Released, RetryAt, Unit
from ..worker.outcomes import Failure, Interruption, JobReturn, Success, pack_record
from ..worker.routes import decode_step
from .conditions import find_subscription, make_arguments
from .decide import Decider, Decision, EndedStep, MappedInput, Route, RoutedEvent
from .record_parts import (
    LoadedParts,
    PartLoad,
    compensations_key,
    decode_compensations,
    decode_results,
    results_key,
)
from .run_record import RunRecord
from .step_work import StepWork
from .units import decode_options

if TYPE_CHECKING:
    from .engine import FlowEngine

T = TypeVar("T")


class EngineWork(StepWork):
    """One claim of such a job. It appends no event of its own: the flow looks as if it had been decided at once."""

    def __init__(
        self,
        engine: FlowEngine,
        claim: Claim,
        record: RunRecord,
        table: TriggerTable,
        flow: Flow | None,
        work: Callable[[], Awaitable[None]],
    ) -> None:
        handler = Handler(claim.name, work, DELIVERIES, ROUTE_RETRY, dead_letters=False)
        super().__init__(engine, claim, record, table, flow, handler, 1)

    def decide(self, decider: Decider) -> Decision:
        """Decide with what the job has found."""
        raise NotImplementedError

    def give_up(self, failure: Failure) -> None:
        """Take note that the job failed for good."""
        raise NotImplementedError

    def on_success(self, success: Success) -> CommitRequest:
        return self._request(success.output, self.decide, Completed(success.result), success)

    def on_failure(self, failure: Failure) -> CommitRequest:
        error = pack_record(msgspec.to_builtins(failure.error))
        if failure.retry_in_ms is not None:
            due = self._engine.clock.now_ms() + failure.retry_in_ms
            return self._request(failure.output, lambda _: None, RetryAt(due, error), failure)
        self.give_up(failure)
        return self._request(failure.output, self.decide, Dead(error), failure)

    def on_interruption(self, interruption: Interruption) -> CommitRequest:
        return self._release(Released(gives_attempt_back=not interruption.is_counted))

    def on_return(self, returned: JobReturn) -> CommitRequest:
        return self._release(Released(self._engine.clock.now_ms() + returned.delay_ms))

    def _release(self, outcome: Outcome) -> CommitRequest:
        unit = Unit(self._engine.new_unit_id(), claim=self.claim, outcome=outcome)
        return CommitRequest(lambda _v, _r: unit, outlasts_outage=True)


class RouteWork(EngineWork):
    """One claim of a route."""

    def __init__(self, engine: FlowEngine, claim: Claim, record: RunRecord, table: TriggerTable, flow: Flow | None):
        super().__init__(engine, claim, record, table, flow, self._evaluate)
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

    def decide(self, decider: Decider) -> Decision:
        return decider.on_routed(self._routed)

    def give_up(self, failure: Failure) -> None:
        self._routed = RoutedEvent(self._route, problem=RunnerLost(failure.error.error))


class StepRouteWork(EngineWork):
    """One claim of the route of a step: it adds the step's job with its rate key, or fails the step."""

    def __init__(self, engine: FlowEngine, claim: Claim, record: RunRecord, table: TriggerTable, flow: Flow | None):
        super().__init__(engine, claim, record, table, flow, self._evaluate)
        self._routed = decode_step(claim.payload)
        self._rate_key: str | None = None
        self._problem: Exception | None = None

    async def _evaluate(self) -> None:
        definition = self._flow.steps.get(self._routed.name) if self._flow is not None else None
        if definition is None:
            raise UnknownStep(f"no step {self._routed.name!r} of flow {self.flow!r} here; run a worker that has it")
        try:
            self._rate_key = await definition.handler.evaluate_rate_key(unpack(bytes(self._routed.payload)))
        except (RunnerLost, ConfigError):
            raise
        except Exception as problem:
            self._problem = problem

    def decide(self, decider: Decider) -> Decision:
        routed = self._routed
        if self._problem is None:
            return decider.on_job(routed.build(self._run, self._rate_key))
        step, n = self._routed.name, decode_options(bytes(routed.opts)).n
        why = describe_error(type(self._problem).__name__, str(self._problem))
        error = {"error": f"the rateKey function of {step} raised {why}", "code": "rate_key_failed"}
        return decider.on_failed(EndedStep(step, n, routed.id, 1, bytes(routed.payload), 0), error, 1)

    def give_up(self, failure: Failure) -> None:
        self._problem = RunnerLost(failure.error.error)


class PartsWork(EngineWork):
    """One claim of a job that reads parts of the run record."""

    def __init__(self, engine: FlowEngine, claim: Claim, record: RunRecord, table: TriggerTable, flow: Flow | None):
        super().__init__(engine, claim, record, table, flow, self._read)
        self._known = record
        self._loaded = LoadedParts(msgspec.json.decode(claim.payload, type=PartLoad))

    async def _read(self) -> None:
        if not self._table.steps:  # without its steps, no decision about a run is right
            raise UnknownFlow(f"no flow {self.flow!r} here; add its file, or run a worker that has it")
        load = self._loaded.load
        if load.what != "results":
            self._loaded.compensations = await self._read_part(
                compensations_key(self._run, load.part), decode_compensations
            )
            return
        for step, moved in self._known.moved_results.items():
            found: dict[str, msgspec.Raw] = {}
            for part in range(1, moved.parts + 1):
                found |= await self._read_part(results_key(self._run, step, part), decode_results)
            self._loaded.results[step] = found

    async def _read_part(self, key: str, decode: Callable[[bytes], T]) -> T:
        hint = "restore it from a backup"
        row = await self._engine.runtime.store.state(key)
        return read_stored(
            decode, row.value if row is not None else b"", f"state {key!r}, a part of the run record", hint
        )

    def decide(self, decider: Decider) -> Decision:
        return decider.on_loaded(self._loaded)

    def give_up(self, failure: Failure) -> None:
        self._loaded = LoadedParts(self._loaded.load, problem=failure.error.error)


async def _settle(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
