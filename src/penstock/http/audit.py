"""The audit stream: one event for each command that came over HTTP, with who gave it and from where.

The event is part of the command's own commit. If a command writes nothing, or fails, the event is a commit of its own.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..app.app import App
from ..app.tokens import ADMIN, Caller
from ..commit.attached_events import ATTACHED, AttachedEvents
from ..commit.committer import CommitRequest
from ..core.api_errors import Forbidden
from ..core.errors import PenstockError
from ..core.events import EventBody
from ..ports.unit import NewEvent, Unit
from .auth import address_of
from .endpoints import Call, Endpoint

AUDIT = "audit"
COMMAND = "audit.command"
MAX_TEXT_CHARS = 500


async def call_recorded(app: App, endpoint: Endpoint, call: Call, arguments: dict[str, Any]) -> Any:
    """Call the function of a command and record it, with its commit or after it."""
    attached = AttachedEvents(_build_event(app, endpoint, call, None))
    token = ATTACHED.set(attached)
    try:
        value = await endpoint.function(**arguments)
    except Exception as problem:
        # Its first unit may be committed: then that one is recorded too.
        code = problem.code if isinstance(problem, PenstockError) else "internal"
        ATTACHED.reset(token)
        await _append(app, _build_event(app, endpoint, call, code))
        raise
    ATTACHED.reset(token)
    attached.is_taken = True  # tasks that the command left behind record nothing
    if not attached.is_committed:
        await _append(app, _build_event(app, endpoint, call, None))
    return value


def _build_event(app: App, endpoint: Endpoint, call: Call, error: str | None) -> NewEvent:
    """Build `audit.command`: the action, its path, the caller, the role and the address; never the body."""
    data: dict[str, Any] = {
        "action": endpoint.function.__name__,
        "method": endpoint.method,
        "path": call.path[:MAX_TEXT_CHARS],
        "by": call.caller.name,
        "role": call.caller.role,
        "address": address_of(call.request),
        "ok": error is None,
    }
    if error is not None:
        data["code"] = error
    if call.is_dry_run:
        data["dryRun"] = True
    if call.wants_reveal:
        data["reveal"] = True
    body = EventBody(COMMAND, call.caller.name, data=msgspec.Raw(msgspec.json.encode(data)))
    return NewEvent(audit_stream(app), app._bodies.encode(body))


async def _append(app: App, event: NewEvent) -> None:
    unit = Unit(app._runtime.new_unit_id(), events=[event])
    await app._committer.submit(CommitRequest(lambda _v, _r: unit))


def check_reader(caller: Caller, stream: str) -> str:
    """Return the name of a stream, or raise Forbidden if it is the audit stream and the caller is no admin."""
    if stream.split(":")[1:2] == [AUDIT] and not caller.may(ADMIN):
        raise Forbidden(f"{caller.name!r} has the role {caller.role}; the audit stream needs the role {ADMIN}")
    return stream


def hidden_stream(app: App, caller: Caller) -> str | None:
    """Return the stream that a feed of all streams leaves out for this caller."""
    return None if caller.may(ADMIN) else audit_stream(app)


def audit_stream(app: App) -> str:
    """Return the name of the audit stream."""
    return app._bodies.stream_name(AUDIT, "log")
