"""The reducer of entities: folds the events of a stream into a view. Fold the first N to see the entity as it was."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ..core.events import Event

PREFIX = "entity."
MAX_HISTORY = 1_000  # transitions of a view; the stream has all of them


class TransitionView(msgspec.Struct, rename="camel", omit_defaults=True):
    """One change of an entity, or an event that changed nothing."""

    n: int
    event: str
    kind: str  # transitioned, kept, refused or failed
    at: str
    from_: str | None = msgspec.field(default=None, name="from")
    to: str | None = None
    path: list[str] = []
    reason: str | None = None
    code: str | None = None
    payload: Any = None
    duration: int | None = None


class EntityView(msgspec.Struct, rename="camel", omit_defaults=True):
    """An entity. `status` is its state; `handling` the event that is being handled."""

    id: str = ""
    urn: str = ""
    type: str = ""
    status: str = msgspec.field(default_factory=str)
    data: Any = None
    created_at: str | None = None
    updated_at: str | None = None
    closed_at: str | None = None
    paused: bool = False
    received: int = 0
    handled: int = 0
    refused: int = 0
    failed: int = 0
    waiting: dict[str, str] = {}  # events that have not ended, by number
    handling: int | None = None
    attempt: int = 0
    error: str | None = None  # of the last attempt, until the event ends
    history: list[TransitionView] = []  # the newest ones
    payloads: dict[str, Any] = {}  # of events that have not ended, by number
    last_event: str | None = None
    unreadable_events: list[str] = []


def reduce_entity(events: Iterable[Event]) -> EntityView:
    """Fold the events of an entity, all of them or the first N."""
    view = EntityView()
    for event in events:
        apply_entity(view, event)
    return view


def apply_entity(view: EntityView, event: Event) -> None:
    """Apply one more event to a view."""
    view.last_event = event.id
    view.id = view.id or event.subject
    if event.is_unreadable:
        view.unreadable_events.append(event.id)
        return
    if not event.kind.startswith(PREFIX):
        return
    data: dict[str, Any] = event.data if isinstance(event.data, dict) else {}
    meta = event.meta or {}
    what, n = event.kind.removeprefix(PREFIX), _count(meta.get("n"))
    if what == "created":
        view.urn, view.type, view.status = _text(data, "urn"), _text(data, "type"), _text(data, "status")
        view.created_at, view.data = event.ts, data.get("data")
    elif what == "received":
        view.received = max(view.received, n)
        view.waiting[str(n)] = _text(data, "event")
        if "payload" in data:
            view.payloads[str(n)] = data["payload"]
    elif what == "started":
        view.handling, view.attempt = n, _count(meta.get("attempt"))
    elif what in ("retrying", "returned"):
        view.handling = None
        if what == "retrying":
            view.error = _text(data, "error")
    elif what in ("transitioned", "kept", "refused", "failed"):
        _end(view, event, what, n, data, meta)
    elif what == "closed":
        view.closed_at = event.ts
    elif what in ("paused", "resumed"):
        view.paused = what == "paused"


def _end(view: EntityView, event: Event, what: str, n: int, data: dict[str, Any], meta: dict[str, Any]) -> None:
    view.handling, view.error, view.attempt = None, None, 0
    view.handled += 1
    view.updated_at = event.ts
    view.waiting.pop(str(n), None)
    one = TransitionView(n, _text(data, "event"), what, event.ts, payload=view.payloads.pop(str(n), None))
    one.duration = _count(meta["duration"]) if "duration" in meta else None
    one.reason, one.code = _optional(data, "reason") or _optional(data, "error"), _optional(data, "code")
    if what == "transitioned":
        one.from_, one.to = _text(data, "from"), _text(data, "to")
        path = data.get("path")
        states = path if isinstance(path, list) else [one.from_, one.to]
        one.path = [state for state in states if isinstance(state, str)]
        view.status = one.to
    elif what == "refused":
        view.refused += 1
    elif what == "failed":
        view.failed += 1
    if "data" in data and what in ("transitioned", "kept"):
        view.data = data["data"]
    view.history.append(one)
    if len(view.history) > MAX_HISTORY:
        del view.history[0]


def _text(data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    return value if isinstance(value, str) else ""


def _optional(data: dict[str, Any], name: str) -> str | None:
    value = data.get(name)
    return value if isinstance(value, str) else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
