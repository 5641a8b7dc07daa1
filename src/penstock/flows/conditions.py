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
from ..handlers.subscriptions import Subscription


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
        subscription = self._find(step, kind)
        if subscription is None or subscription.when is None:
            return True
        value = unpack(data)
        if callable(subscription.when):
            return bool(self._call(subscription.when, kind, value))
        return contains(value, subscription.when)

    def map_input(self, step: str, kind: str, data: bytes) -> bytes | None:
        subscription = self._find(step, kind)
        if subscription is None or subscription.map is None:
            return None
        return pack(self._call(subscription.map, kind, unpack(data)), f"the mapped input of {step}")

    def _find(self, step: str, kind: str) -> Subscription | None:
        definition: StepDefinition | None = self._flow.steps.get(step) if self._flow is not None else None
        if definition is not None:
            for subscription in definition.subscriptions:
                if subscription.kind == kind:
                    return subscription
        return None

    def _call(self, fn: Callable[..., Any], kind: str, data: Any) -> Any:
        """Call a function with the event, and with the run if it takes two arguments."""
        run, corr = self._run, self._correlation_id
        event = Event("", "", kind, run, run, correlation_id=corr, data=data)
        view = RunInfo(run, self._flow.name if self._flow is not None else "", corr)
        try:
            inspect.signature(fn).bind(event, view)
        except TypeError:
            return fn(event)
        return fn(event, view)
