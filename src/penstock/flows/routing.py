"""The caller's `when` and `map`, as decisions see them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.events import Event
from ..core.matching import contains
from ..core.payload import pack, unpack
from .definition import StepDefinition, Subscription
from .registry import Flow


@dataclass(frozen=True)
class RunView:
    """What a two-argument `when(event, run)` is told of the run."""

    run_id: str
    flow: str
    correlation_id: str


class CodeRouting:
    """Evaluates the subscriptions of the code loaded in this process. An unknown step listens without conditions."""

    def __init__(self, flow: Flow | None, view: RunView) -> None:
        self._flow = flow
        self._view = view

    def wants(self, step: str, kind: str, data: bytes) -> bool:
        subscription = self._find(step, kind)
        if subscription is None or subscription.when is None:
            return True
        value = unpack(data)
        if callable(subscription.when):
            return bool(_call(subscription.when, self._event(kind, value), self._view))
        return contains(value, subscription.when)

    def input(self, step: str, kind: str, data: bytes) -> bytes | None:
        subscription = self._find(step, kind)
        if subscription is None or subscription.map is None:
            return None
        return pack(_call(subscription.map, self._event(kind, unpack(data)), self._view), f"the mapped input of {step}")

    def _find(self, step: str, kind: str) -> Subscription | None:
        definition: StepDefinition | None = self._flow.steps.get(step) if self._flow is not None else None
        if definition is None:
            return None
        return next((s for s in definition.subscriptions if s.kind == kind), None)

    def _event(self, kind: str, data: Any) -> Event:
        run = self._view.run_id
        return Event("", "", kind, run, run, correlation_id=self._view.correlation_id, data=data)


def _call(fn: Callable[..., Any], event: Event, view: RunView) -> Any:
    """Calls with one argument or two, as the function takes them."""
    try:
        inspect.signature(fn).bind(event, view)
    except TypeError:
        return fn(event)
    return fn(event, view)
