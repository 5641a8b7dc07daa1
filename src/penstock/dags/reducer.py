"""The reducer of dags: folds the events of a run into the view that runs of flows have, with nodes as its steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ..core.events import Event
from ..flows.reducer import RunView, StepView, apply_flow

PREFIX = "node."
_SAME = {"started", "completed", "failed", "retry", "progress", "partial", "returned", "cancelled", "redriven"}


def reduce_dag(events: Iterable[Event]) -> RunView:
    """Fold the events of a run of a dag, all of them or the first N."""
    view = RunView()
    for event in events:
        apply_dag(view, event)
    return view


def apply_dag(view: RunView, event: Event) -> None:
    """Apply one more event to a view."""
    if not event.kind.startswith(PREFIX):
        apply_flow(view, _drop_number(event) if _is_of_retried_node(view, event) else event)
        return
    what = event.kind.removeprefix(PREFIX)
    if what in _SAME:
        apply_flow(view, msgspec.structs.replace(_drop_number(event), kind=f"step.{what}"))
        return
    view.last_event = event.id
    if what == "skipped":
        _skip(view, event)


def _is_of_retried_node(view: RunView, event: Event) -> bool:
    """Return whether a call or a wait is of a node. This reducer also folds the runs of flows: an instance of a step
    has started before."""
    n = (event.meta or {}).get("n", 1)
    if n == 1 or event.kind == "step.started" or not event.kind.startswith(("call.", "step.")):
        return False
    return event.step in view.steps and f"{event.step}#{n}" not in view.steps


def _drop_number(event: Event) -> Event:
    """Return the event without its number of the instance: a node has one, and a retried one continues it."""
    if not event.meta or "n" not in event.meta:
        return event
    return msgspec.structs.replace(event, meta={key: value for key, value in event.meta.items() if key != "n"})


def _skip(view: RunView, event: Event) -> None:
    step = view.steps.setdefault(event.step or "", StepView(event.step or ""))
    data: dict[str, Any] = event.data if isinstance(event.data, dict) else {}
    reason = data.get("reason")
    step.status, step.completed_at = "skipped", event.ts
    step.reason = reason if isinstance(reason, str) else None
