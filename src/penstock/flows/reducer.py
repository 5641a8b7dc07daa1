"""Reducers: fold the events of a run or of a trigger into a view. Fold the first N events to see it as it was then."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ..core.clock import to_iso
from ..core.events import RESERVED_PREFIXES, Event
from ..jobs.reducer import CallView, add_partial, cancel_calls, change_call


class StepView(msgspec.Struct, rename="camel", omit_defaults=True):
    """One instance of a step, or a node. Status: pending, running, completed, failed, retrying, waiting, timeout,
    cancelled or, of a node, skipped."""

    step: str
    n: int = 1
    status: str = msgspec.field(default_factory=lambda: "pending")  # a factory: JSON always has the status
    attempt: int = 0
    started_at: str | None = None
    completed_at: str | None = None
    duration: int | None = None
    result: Any = None
    error: str | None = None
    error_name: str | None = None  # the class of the exception
    code: str | None = None
    file: str | None = None  # where the handler failed
    line: int | None = None
    frames: list[dict[str, Any]] = []  # `file`, `line`, `function` and `source`, of the user's code
    dead_letter: str | None = None  # its id, after a final failure
    reason: str | None = None  # why a node was skipped
    next_retry_at: str | None = None
    progress: Any = None
    partials: list[Any] = []  # of one attempt: a failed or crashed one leaves nothing here
    partials_of: int | None = None  # that attempt
    calls: dict[str, CallView] = {}  # its `ctx.run` calls, by name
    await_type: str | None = None
    await_data: Any = None
    await_since: str | None = None
    also_awaits: list[dict[str, Any]] = []  # `type`, `data` and `since` of the other waits, if it has several


class RunView(msgspec.Struct, rename="camel", omit_defaults=True):
    """A run. Status: running, waiting, paused, compensating, completed, failed, compensated or cancelled."""

    id: str = ""
    name: str = ""
    status: str = msgspec.field(default_factory=lambda: "running")  # a factory: JSON always has the status
    correlation_id: str | None = None
    version: str | None = None
    forked_from: str | None = None
    parent: str | None = None  # the run or job whose handler started it
    root: str | None = None  # the first run of that chain
    depth: int | None = None  # how many runs wait for it, one above the other
    started_at: str | None = None
    completed_at: str | None = None
    duration: int | None = None
    input: Any = None
    result: Any = None
    error: str | None = None
    reason: str | None = None
    unmet: dict[str, list[str]] | None = None  # joins that never started: step -> kinds it did not receive
    steps: dict[str, StepView] = {}
    state: dict[str, Any] = {}  # `ctx.state`; a large value as its `size` and `hash`
    emitted: list[dict[str, Any]] = []
    logs: list[dict[str, Any]] = []
    last_event: str | None = None
    last_event_at: str | None = None
    logs_count: int | None = None
    last_log_level: str | None = None
    waiting_for: str | None = None  # time, event, trigger or flow: what the first waiting step waits for
    wait_step: str | None = None
    wait_until: str | None = None
    wait_trigger: str | None = None  # id of the trigger; its token is secret
    unreadable: str | None = None  # why the run's record cannot be read
    unreadable_events: list[str] = []  # ids of its events that cannot be read; what they recorded is missing here


class TriggerView(msgspec.Struct, rename="camel", omit_defaults=True):
    """A trigger. Status: registered, fired, timeout or cancelled. `flow` is the run whose `step` it resumes."""

    status: str = msgspec.field(default_factory=lambda: "registered")  # a factory: JSON always has the status
    id: str | None = None
    name: str | None = None
    type: str | None = None
    flow: str | None = None
    step: str | None = None
    correlation_id: str | None = None
    timeout: int | None = None
    registered_at: str | None = None
    fired_at: str | None = None
    ended_at: str | None = None  # fired, timed out or cancelled
    payload: Any = None
    source: str | None = None  # where it was fired from
    ip: str | None = None
    manual: bool | None = None  # an operator fired or cancelled it
    by: str | None = None
    reason: str | None = None


def reduce_flow(events: Iterable[Event]) -> RunView:
    """Fold a run's events, all of them or the first N."""
    view = RunView()
    for event in events:
        apply_flow(view, event)
    return view


def display_status(view: RunView) -> str:
    """Return `waiting` for a running run whose open steps all wait, and its status for any other."""
    is_waiting = False
    if view.status == "running":
        for step in view.steps.values():
            if step.status in ("pending", "running", "retrying", "timeout"):
                return view.status
            is_waiting = is_waiting or step.status == "waiting"
    return "waiting" if is_waiting else view.status


def finish_view(view: RunView) -> None:
    """Add what follows from the folded state: the status that people see, counts, and the first wait."""
    view.status = display_status(view)
    view.logs_count = len(view.logs)
    level = view.logs[-1].get("level") if view.logs else None
    view.last_log_level = level if isinstance(level, str) else None
    if view.last_event is not None:
        view.last_event_at = to_iso(int(view.last_event.partition("-")[0]))
    waits = (step for step in view.steps.values() if step.status == "waiting")
    if (step := next(waits, None)) is not None:
        data = step.await_data if isinstance(step.await_data, dict) else {}
        view.waiting_for, view.wait_step = step.await_type, step.step if step.n == 1 else f"{step.step}#{step.n}"
        view.wait_until = _text(data, "resumeAt") or _text(data, "until")
        view.wait_trigger = _text(data, "triggerId")


def apply_flow(view: RunView, event: Event) -> None:
    """Apply one more event to a view."""
    view.last_event = event.id
    if event.is_unreadable:
        view.unreadable_events.append(event.id)
        return
    change = _CHANGES.get(event.kind)
    data = event.data if isinstance(event.data, dict) else {}
    if change is not None:
        change(view, event, data, event.meta or {})
    elif event.kind.startswith("step.await."):
        _step_awaits(view, event, data, event.meta or {})
    elif not event.kind.startswith(RESERVED_PREFIXES):
        view.emitted.append(
            {"id": event.id, "ts": event.ts, "kind": event.kind, "step": event.step, "data": event.data}
        )


def _text(values: dict[str, Any], key: str) -> str | None:
    """Return a text of an event's data; None if it is of another type, which only a damaged event has."""
    found = values.get(key)
    return found if isinstance(found, str) else None


def _number(values: dict[str, Any], key: str, default: Any = None) -> Any:
    found = values.get(key, default)
    return found if isinstance(found, int) and not isinstance(found, bool) else default


def _names(values: dict[str, Any], key: str) -> list[str]:
    found = values.get(key)
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _frames(data: dict[str, Any]) -> list[dict[str, Any]]:
    found = data.get("frames")
    frames = found if isinstance(found, list) else []
    return [one for one in frames if isinstance(one, dict) and one.keys() >= {"file", "line", "function", "source"}]


def _unmet(data: dict[str, Any]) -> dict[str, list[str]] | None:
    found = data.get("unmet")
    return {step: _names(found, step) for step in found} if isinstance(found, dict) else None


def _step(view: RunView, event: Event, meta: dict[str, Any]) -> StepView:
    name, n = event.step or "", _number(meta, "n", 1)
    key = name if n == 1 else f"{name}#{n}"
    found = view.steps.get(key)
    if found is None:
        found = view.steps[key] = StepView(name, n)
    return found


def _flow_started(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    view.id, view.name, view.started_at = event.subject, _text(data, "name") or "", event.ts
    view.correlation_id, view.input, view.version = event.correlation_id, data.get("input"), _text(data, "version")
    view.parent, view.root, view.depth = _text(meta, "parent"), _text(meta, "root"), _number(meta, "depth")


def _flow_ended(status: str) -> Callable[[RunView, Event, dict[str, Any], dict[str, Any]], None]:
    def change(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
        view.status, view.completed_at, view.duration = status, event.ts, _number(data, "duration")
        view.result, view.error, view.reason = data.get("result"), _text(data, "error"), _text(data, "reason")
        view.unmet = _unmet(data)
        if status == "cancelled":
            for step in view.steps.values():
                if step.status in ("pending", "running", "retrying", "waiting"):
                    step.status, step.completed_at, step.next_retry_at = "cancelled", event.ts, None
                    _clear_waits(step)
                    cancel_calls(step.calls)

    return change


def _flow_compensating(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    if view.status != "paused":  # a running step failed during the pause: flow.resumed carries the new status
        view.status = "compensating"


def _flow_paused(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    view.status, view.reason = "paused", _text(data, "reason")


def _flow_resumed(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    view.status, view.reason = _text(data, "status") or "running", None


def _flow_forked(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    """Keep the copied history and restart the steps that were open at the fork."""
    view.forked_from, view.version = _text(data, "from"), _text(data, "version")
    view.status, view.reason = _text(data, "status") or "running", None
    for key, step in view.steps.items():
        if step.status in ("pending", "running", "retrying", "waiting", "timeout"):
            view.steps[key] = StepView(step.step, step.n)


def _flow_reopened(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    view.status, view.completed_at, view.duration, view.error = "running", None, None, None


def _step_started(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    step = _step(view, event, meta)
    attempt = _number(meta, "attempt", 1)
    if attempt != step.partials_of:  # a resume after a wait continues its attempt, and its output
        step.partials, step.partials_of = [], None
    cancel_calls(step.calls)  # those that ran when a worker died
    step.status, step.attempt = "running", attempt
    step.started_at = step.started_at or event.ts
    step.next_retry_at = None
    _clear_waits(step)


def _step_completed(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    step = _step(view, event, meta)
    step.status, step.completed_at, step.duration = "completed", event.ts, _number(meta, "duration")
    step.result = data.get("result")
    _clear_error(step)
    cancel_calls(step.calls)
    for name in _names(meta, "starts"):
        view.steps.setdefault(name, StepView(name))


def _step_failed(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    step = _step(view, event, meta)
    step.error, step.error_name, step.code = _text(data, "error"), _text(data, "name"), _text(data, "code")
    step.file, step.line, step.frames = _text(data, "file"), _number(data, "line"), _frames(data)
    step.dead_letter, step.attempt = _text(data, "deadLetter"), _number(meta, "attempt", step.attempt)
    step.partials, step.partials_of = [], None
    cancel_calls(step.calls)
    if data.get("willRetry"):
        step.status, step.next_retry_at = "retrying", _text(data, "nextRetryAt")
    else:
        step.status, step.completed_at, step.duration = "failed", event.ts, _number(meta, "duration")


def _step_retry(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    step = _step(view, event, meta)
    step.status, step.attempt = "retrying", _number(meta, "attempt", step.attempt)


def _step_redriven(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    step = _step(view, event, meta)
    step.status, step.completed_at, step.duration, step.dead_letter = "pending", None, None, None


def _step_returned(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    """Show a step as pending after its worker released it."""
    step = _step(view, event, meta)
    step.status, step.attempt = "pending", _number(meta, "attempt", step.attempt)
    cancel_calls(step.calls)


def _step_cancelled(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    """Show an attempt that its timeout ended. The failure that follows decides what becomes of the step."""
    _step(view, event, meta).status = "cancelled"


def _step_progress(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    _step(view, event, meta).progress = data.get("progress")


def _step_partial(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    step = _step(view, event, meta)
    step.partials_of = _number(meta, "attempt", step.attempt)
    add_partial(step.partials, data, meta)


def _call_changed(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    change_call(_step(view, event, meta).calls, event.kind, data, meta)


def _step_awaits(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    step = _step(view, event, meta)
    if event.kind == "step.await.timeout":
        # The handler may catch the timeout and continue: later events then change the status.
        step.status, step.completed_at = "timeout", event.ts
        step.error = f"Await timeout after {data.get('duration')}ms"
        _clear_waits(step)
        return
    if event.kind == "step.await.cancelled":  # its handler resumes, or `flow.cancelled` follows
        step.status = "pending"
        _clear_waits(step)
        return
    if step.status == "timeout":
        step.error, step.completed_at = None, None
    if step.await_type is not None:
        step.also_awaits.append({"type": step.await_type, "data": step.await_data, "since": step.await_since})
    step.status, step.await_type = "waiting", event.kind.rsplit(".", 1)[1]
    step.await_data, step.await_since = data, event.ts


def _step_resumed(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    """Resume a step: its worker records the end of a sleep, other waits end before a worker has claimed the step."""
    step = _step(view, event, meta)
    step.status = "running" if "attempt" in meta else "pending"
    _clear_waits(step)


def _clear_error(step: StepView) -> None:
    step.error, step.error_name, step.code, step.file, step.line = None, None, None, None, None
    step.frames, step.dead_letter = [], None


def _clear_waits(step: StepView) -> None:
    step.await_type, step.await_data, step.await_since, step.also_awaits = None, None, None, []


def _log(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    line = {"id": event.id, "ts": event.ts, "step": event.step, "level": data.get("level"), "msg": data.get("msg")}
    line |= {name: meta[name] for name in ("attempt", "n") if name in meta}
    view.logs.append(line | ({"fields": data["fields"]} if "fields" in data else {}))


def _state_set(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    if (key := _text(data, "key")) is not None:
        view.state[key] = data["value"] if "value" in data else {"size": data.get("size"), "hash": data.get("hash")}


def _state_deleted(view: RunView, event: Event, data: dict[str, Any], meta: dict[str, Any]) -> None:
    view.state.pop(_text(data, "key") or "", None)


_CHANGES: dict[str, Callable[[RunView, Event, dict[str, Any], dict[str, Any]], None]] = {
    "flow.started": _flow_started,
    "flow.completed": _flow_ended("completed"),
    "flow.failed": _flow_ended("failed"),
    "flow.cancelled": _flow_ended("cancelled"),
    "flow.compensated": _flow_ended("compensated"),
    "flow.compensating": _flow_compensating,
    "flow.reopened": _flow_reopened,
    "flow.paused": _flow_paused,
    "flow.resumed": _flow_resumed,
    "flow.forked": _flow_forked,
    "step.started": _step_started,
    "step.completed": _step_completed,
    "step.failed": _step_failed,
    "step.retry": _step_retry,
    "step.redriven": _step_redriven,
    "step.returned": _step_returned,
    "step.cancelled": _step_cancelled,
    "step.progress": _step_progress,
    "step.partial": _step_partial,
    "step.resumed": _step_resumed,
    "call.started": _call_changed,
    "call.completed": _call_changed,
    "call.failed": _call_changed,
    "state.set": _state_set,
    "state.deleted": _state_deleted,
    "log": _log,
}


def reduce_trigger(events: Iterable[Event]) -> TriggerView:
    """Fold a trigger's events."""
    view = TriggerView()
    for event in events:
        apply_trigger(view, event)
    return view


def apply_trigger(view: TriggerView, event: Event) -> None:
    """Apply one more event to a view."""
    data = event.data if isinstance(event.data, dict) else {}
    match event.kind:
        case "trigger.registered":
            view.status, view.registered_at, view.id = "registered", event.ts, event.subject
            view.type, view.name, view.timeout = data.get("type"), data.get("name"), data.get("timeout")
            view.flow, view.step, view.correlation_id = event.flow, event.step, event.correlation_id
        case "trigger.fired":
            view.status, view.fired_at, view.payload = "fired", event.ts, data.get("payload")
            view.ended_at, view.source, view.ip = event.ts, _text(data, "source"), _text(data, "ip")
            _apply_manual(view, data)
        case "trigger.timeout":
            view.status, view.ended_at = "timeout", event.ts
        case "trigger.cancelled":
            view.status, view.ended_at, view.reason = "cancelled", event.ts, data.get("reason")
            _apply_manual(view, data)


def _apply_manual(view: TriggerView, data: dict[str, Any]) -> None:
    manual = data.get("manual")
    if isinstance(manual, dict):
        view.manual, view.by, view.reason = True, _text(manual, "by"), _text(manual, "reason")
