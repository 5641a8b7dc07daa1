"""Evaluates the `when` and `map` of subscriptions for decisions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.events import Event
from ..core.json_match import contains
from ..core.payload import pack, unpack
from ..handlers.decorators import StepDefinition
from ..handlers.registry import Flow
from ..handlers.subscriptions import Subscription, read_mapped
from ..ports.script_files import Deferred, ScriptFunction
from .decide import MappedInput


@dataclass(frozen=True)
class RunInfo:
    """The run, as the second argument of `when(event, run)` and `map(event, run)`."""

    run_id: str
    flow: str
    correlation_id: str


class CodeConditions:
    """Evaluates the subscriptions of the code loaded in this process. An unknown step has no conditions."""

    def __init__(self, flow: Flow | None, run: str, correlation_id: str) -> None:
        self._flow = flow
        self._run = run
        self._correlation_id = correlation_id

    def matches(self, step: str, kind: str, data: bytes) -> bool:
        subscription = find_subscription(self._flow, step, kind)
        if subscription is None or subscription.when is None:
            return True
        if isinstance(subscription.when, ScriptFunction):
            raise Deferred
        value = unpack(data)
        if callable(subscription.when):
            return bool(self._call(subscription.when, kind, value))
        return contains(value, subscription.when)

    def map_input(self, step: str, kind: str, data: bytes) -> MappedInput | None:
        subscription = find_subscription(self._flow, step, kind)
        if subscription is None or subscription.map is None:
            return None
        if isinstance(subscription.map, ScriptFunction):
            raise Deferred
        returned = self._call(subscription.map, kind, unpack(data))
        value, options = read_mapped(returned, subscription.has_options)
        return MappedInput(pack(value, f"the mapped input of {step}"), options)

    def _call(self, fn: Callable[..., Any], kind: str, data: Any) -> Any:
        """Call a function with the event, and with the run if it takes two arguments."""
        flow = self._flow.name if self._flow is not None else ""
        event, view = make_arguments(self._run, flow, self._correlation_id, kind, data)
        try:
            inspect.signature(fn).bind(event, view)
        except TypeError:
            return fn(event)
        return fn(event, view)


def find_subscription(flow: Flow | None, step: str, kind: str) -> Subscription | None:
    """Return the subscription of a step to a kind of event, or None."""
    definition: StepDefinition | None = flow.steps.get(step) if flow is not None else None
    if definition is not None:
        for subscription in definition.subscriptions:
            if subscription.kind == kind:
                return subscription
    return None


def make_arguments(run: str, flow: str, correlation_id: str, kind: str, data: Any) -> tuple[Event, RunInfo]:
    """Return what a `when` or `map` is called with."""
    event = Event("", "", kind, run, run, correlation_id=correlation_id, data=data)
    return event, RunInfo(run, flow, correlation_id)
