"""`/api/_state`: shared keys, and those of a run."""

from __future__ import annotations

from typing import Any

import msgspec

from ...app.app import App
from ...app.state import AppState
from ...core.api_errors import UnknownKey
from ..endpoints import Body, Call, Limit, Query, Routes
from .jobs import Done

routes = Routes("state")
_ABSENT = object()


class StateQuery(Query):
    """Which keys to list."""

    run: str | None = None  # keys of this run instead of shared ones
    prefix: str = ""
    after: str | None = None
    limit: Limit = 100


class RunQuery(Query):
    """Whose key."""

    run: str | None = None


class StateKeys(msgspec.Struct, omit_defaults=True):
    """A page of keys and values. `next` is the `after` of the next page, or null."""

    items: dict[str, Any]
    next: str | None = None
    unreadable: dict[str, str] = {}


class StateValue(msgspec.Struct):
    """The value of a key."""

    key: str
    value: Any


class SetBody(Body):
    """A value to set."""

    value: Any
    ttl: float | str | None = None


@routes.get("/api/_state")
async def list_state(app: App, query: StateQuery) -> StateKeys:
    """List keys and values."""
    page = await _state(app, query.run).list(query.prefix, after=query.after, limit=query.limit)
    return StateKeys(dict(page), page.next, page.unreadable)


@routes.get("/api/_state/{key:path}")
async def get_state(app: App, call: Call, key: str, query: RunQuery) -> StateValue:
    """Return the value of a key."""
    value = await _state(app, query.run).get(key, _ABSENT)
    if value is _ABSENT:
        raise UnknownKey(f"no state key {key[:100]!r}")
    return _show(app, call, key, value)


@routes.put("/api/_state/{key:path}")
async def set_state(app: App, call: Call, key: str, query: RunQuery, body: SetBody) -> StateValue:
    """Set a key."""
    await _state(app, query.run).set(key, body.value, ttl=body.ttl)
    return _show(app, call, key, body.value)


@routes.delete("/api/_state/{key:path}")
async def delete_state(app: App, key: str, query: RunQuery) -> Done:
    """Delete a key."""
    state = _state(app, query.run)
    existed = await state.get(key, _ABSENT) is not _ABSENT
    await state.delete(key)
    return Done(existed)


def _show(app: App, call: Call, key: str, value: Any) -> StateValue:
    """Return a key with its value; the redactor hides the value of `user/7/password`, as in lists."""
    return StateValue(key, value if call.wants_reveal else app._bodies.redact_value({key: value})[key])


def _state(app: App, run: str | None) -> AppState:
    return app.state if run is None else app.state.of_run(run)
