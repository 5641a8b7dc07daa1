"""`app.waits`: list what runs wait for, and fire triggers."""

from __future__ import annotations

from typing import Any

import msgspec

from ..commit.runtime import Runtime
from ..core.arguments import check_arguments
from ..core.clock import to_iso
from ..core.errors import BadArgument, UnreadableRecord
from ..core.events import EventBodies
from ..core.signatures import Signature
from ..core.text import shorten
from ..durable.trigger_commands import TriggerCommands
from ..durable.wait_records import EVENT, TIME, TRIGGER, read_body
from ..ports.store import WaitRow

KINDS = (TIME, EVENT, TRIGGER)


class WaitView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pending wait: which step of which run waits for what, since when and until when."""

    id: str
    run: str
    step: str | None
    kind: str  # time, event or trigger
    name: str  # of the durable call
    since: str
    until: str | None = None
    n: int = 1
    event: str | None = None
    match: Any = None
    trigger: str | None = None  # webhook, user or api
    signed: bool = False
    schema: Any = None  # JSON schema of a trigger's data
    unreadable: str | None = None  # why its step and its times are missing


@check_arguments
class Waits:
    """Pending waits and triggers."""

    def __init__(self, runtime: Runtime) -> None:
        self._store = runtime.store
        self._triggers = TriggerCommands(runtime)

    async def list(
        self, *, run: str | None = None, kind: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[WaitView]:
        """Return a page of pending waits, in the order of their ids.

        Args:
            run: Only waits of this run.
            kind: Only waits of this kind: time, event or trigger.
            after: Id of the last wait of the page before.
            limit: Maximum number of waits.
        """
        if kind is not None and kind not in KINDS:
            raise BadArgument(f"kind must be 'time', 'event' or 'trigger', got {shorten(kind)}")
        found: list[WaitRow] = []
        while len(found) < limit and (rows := await self._store.waits(run=run, kind=kind, after=after, limit=limit)):
            after = rows[-1].id
            found += [row for row in rows if row.kind in KINDS]  # others start flows and belong to no run
        return [wait_view(row) for row in found[:limit]]

    async def fire(self, token: str, data: Any = None, *, signature: Signature | None = None) -> str:
        """Fire a trigger and return the id of the run that it resumes. A token works once.

        Args:
            token: The trigger's token, or its URL.
            data: What the waiting step receives: any JSON value. Leave it out of a signed call.
            signature: The signature of the call, for triggers that require one. The step receives its body.
        """
        return await self._triggers.fire(token, data, signature)

    async def sign(self, token: str, data: Any = None) -> Signature:
        """Sign a call of a trigger, with the secret in the environment variable that the trigger names.

        Args:
            token: The trigger's token, or its URL.
            data: What the waiting step will receive: any JSON value.
        """
        return await self._triggers.sign(token, data)

    async def token(self, id: str) -> str:
        """Return a new token for a pending trigger: for a declared wait, or after a link was lost.

        Args:
            id: Id of the trigger; `app.waits.list(kind="trigger")` lists them.
        """
        return await self._triggers.issue_token(id)


def describe_wait(wait: WaitView, bodies: EventBodies) -> str:
    """Return what a wait is for and until when, without secrets: `waiting for event order.paid until 2026-…`."""
    if wait.unreadable is not None:
        return wait.unreadable
    if wait.kind == TIME:
        return f"sleeping until {wait.until}"
    if wait.kind == EVENT:
        match = f" {msgspec.json.encode(bodies.redact_value(wait.match)).decode()}" if wait.match else ""
        what = f"event {wait.event}{match}"
    else:
        what = f"trigger {wait.name!r}"
    return f"waiting for {what}" + (f" until {wait.until}" if wait.until is not None else "")


def wait_view(row: WaitRow) -> WaitView:
    """Return a pending wait with its body decoded, or why it cannot be read."""
    until = to_iso(row.due) if row.due is not None else None
    try:
        body = read_body(row)
    except UnreadableRecord as problem:
        return WaitView(row.id, row.run, None, row.kind, "", "", until, event=row.topic, unreadable=str(problem))
    return WaitView(
        id=row.id,
        run=row.run,
        step=body.step,
        kind=row.kind,
        name=body.name or body.key.partition("#")[0],
        since=to_iso(body.at),
        until=until,
        n=body.n,
        event=row.topic,
        match=body.match or None,
        trigger=body.type,
        signed=body.signed is not None,
        schema=body.schema,
    )
