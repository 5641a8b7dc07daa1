"""`app.waits`: list what runs wait for, fire triggers, resolve and cancel waits by hand."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, overload

import msgspec

from ..commit.command_sink import DirectSink
from ..commit.preview import Preview, run_planned
from ..commit.runtime import Runtime
from ..core.argument_checks import check_arguments
from ..core.clock import to_iso
from ..core.durations import Duration
from ..core.errors import BadArgument, UnreadableRecord
from ..core.events import EventBodies
from ..core.ids import BadId
from ..core.payload import unpack
from ..core.signatures import Signature
from ..core.text import shorten
from ..durable.journal import RESULT
from ..durable.trigger_commands import TriggerCommands
from ..durable.wait_commands import KINDS, WaitCommands, find_wait
from ..durable.wait_records import CALL, EVENT, TIME, TRIGGER, CallOrigin, Manual, decode_result, read_body
from ..flows.engine import FlowEngine
from ..ports.store import WaitRow
from ..worker.child_runs import ChildRuns
from ..worker.routes import find_own_id
from .arguments import check_choice, to_moment_ms

STATES = ("pending", "resolved", "expired", "cancelled")
FIRED = "fired"  # of a trigger: resolved


class WaitView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A wait: which step of which run waits for what, since when and until when, and how it ended.

    Only `app.waits.get` reads the fields from `data` on.
    """

    id: str
    run: str
    step: str | None
    kind: str  # time, event, trigger or call
    name: str  # of the durable call
    since: str
    until: str | None = None
    n: int = 1
    event: str | None = None
    match: Any = None
    trigger: str | None = None  # webhook, user or api
    signed: bool = False
    schema: Any = None  # JSON schema of a trigger's data
    child: str | None = None  # of a call: the run it waits for, or the start of the ids of many
    children: int | None = None  # how many, if many
    unreadable: str | None = None  # why its step and its times are missing
    state: str = "pending"  # pending, resolved, expired or cancelled
    ended: str | None = None  # when it was resolved, expired or cancelled
    payload: Any = None  # what a trigger shows to the person who answers
    data: Any = None  # what it was resolved with: the event's data, or the data the trigger was fired with
    source: str | None = None  # where a trigger was fired from: http, cli, app or manual
    ip: str | None = None  # of the caller that fired it
    manual: bool = False  # an operator resolved or cancelled it
    by: str | None = None  # the operator
    reason: str | None = None


@check_arguments
class Waits:
    """Waits and triggers: pending ones, and those that ended as long as their run is kept."""

    def __init__(self, runtime: Runtime, engine: FlowEngine, children: ChildRuns) -> None:
        self._store = runtime.store
        self._children = children
        self._clock = runtime.clock
        self._engine = engine
        self._triggers = TriggerCommands(runtime)
        self._commands = WaitCommands(runtime, DirectSink(runtime.committer))

    async def list(
        self,
        *,
        run: str | None = None,
        kind: str | None = None,
        state: str = "pending",
        since: datetime | Duration | None = None,
        until: datetime | Duration | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[WaitView]:
        """Return a page of waits in one state, newest first.

        Args:
            run: Only waits of this run.
            kind: Only waits of this kind: time, event, trigger or call.
            state: pending, resolved, expired or cancelled; `fired` lists the triggers that were fired. Without a run,
                a state other than pending lists triggers only.
            since: Only waits registered since a datetime, or within a duration such as "1h".
            until: Only waits registered before a datetime, or longer ago than a duration.
            before: Id of the last wait of the page before.
            limit: Maximum number of waits.
        """
        if kind is not None and kind not in KINDS:
            raise BadArgument(f"kind must be 'time', 'event', 'trigger' or 'call', got {shorten(kind)}")
        check_choice(state, (*STATES, FIRED), "state")
        if state == FIRED:
            state, kind = "resolved", TRIGGER
        if state != "pending" and run is None and kind not in (None, TRIGGER):
            raise BadArgument(f"to list {kind!r} waits that ended, pass run=; only triggers are listed without it")
        times = {"since": to_moment_ms(since, self._clock), "until": to_moment_ms(until, self._clock)}
        found: list[WaitRow] = []
        last = before
        while len(found) < limit and (
            rows := await self._store.waits_by_time(run=run, kind=kind, state=state, before=last, limit=limit, **times)
        ):
            last = rows[-1].id
            found += [row for row in rows if row.kind in KINDS]  # others start flows and belong to no run
            if len(rows) < limit:  # the last page; a damaged wait may have lost its place, so do not ask after it
                break
        if not found and run is not None and before is None and (own := await self._find_own_id(run)) is not None:
            return await self.list(run=own, kind=kind, state=state, since=since, until=until, limit=limit)
        if not found and before is not None and await self._store.wait_row(before) is None:
            raise BadId(f"no wait with id {before!r}; before= must be the id of the last wait on the previous page")
        return [wait_view(row) for row in found[:limit]]

    async def _find_own_id(self, run: str) -> str | None:
        """Return the id of the run that an id stands for; None for the id of a run."""
        own = await find_own_id(self._store, run) if await self._store.run(run) is None else None
        return own if own != run else None

    async def get(self, id: str) -> WaitView:
        """Return a wait, pending or not, with what it was resolved with. Raise UnknownWait if there is none.

        Args:
            id: The wait's id, as `app.waits.list` returns it.
        """
        row = await find_wait(self._store.wait_row, id)
        view = wait_view(row)
        if row.state == "pending" or view.unreadable is not None:
            return view
        memo = (await self._store.memos(row.scope)).get(read_body(row).key + RESULT)
        return view if memo is None else _add_result(view, memo)

    @overload
    async def resolve(
        self,
        id: str,
        data: Any = None,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: Literal[False] = False,
        version: int | Preview | None = None,
    ) -> str: ...

    @overload
    async def resolve(
        self,
        id: str,
        data: Any = None,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: Literal[True],
        version: int | Preview | None = None,
    ) -> Preview: ...

    @overload
    async def resolve(
        self,
        id: str,
        data: Any = None,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool,
        version: int | Preview | None = None,
    ) -> str | Preview: ...

    async def resolve(
        self,
        id: str,
        data: Any = None,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        version: int | Preview | None = None,
    ) -> str | Preview:
        """Resolve a pending wait by hand and return the id of the run that resumes.

        It ends a sleep, gives an event wait the data as its event, or fires a trigger. It is recorded as manual. The
        data of an event is not compared with `match` and `where`.

        Args:
            id: The wait's id, as `app.waits.list` returns it.
            data: The data of the event, or what the trigger is fired with: any JSON value.
            reason: Why, for the record.
            by: Who did it, for the record.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """
        run, flow = await self._owner_of(id)

        def check(kind: str, packed: bytes) -> None:
            self._engine.check_event(flow, kind, packed)

        async def act() -> WaitRow:
            return await self._commands.resolve(id, data, Manual(by, reason), check)

        row, preview = await run_planned(self._store, run, dry_run, version, act, self._children.add_to)
        return row.run if preview is None else preview

    @overload
    async def cancel(
        self,
        id: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: Literal[False] = False,
        version: int | Preview | None = None,
    ) -> str: ...

    @overload
    async def cancel(
        self,
        id: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: Literal[True],
        version: int | Preview | None = None,
    ) -> Preview: ...

    @overload
    async def cancel(
        self,
        id: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool,
        version: int | Preview | None = None,
    ) -> str | Preview: ...

    async def cancel(
        self,
        id: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        version: int | Preview | None = None,
    ) -> str | Preview:
        """Cancel a pending wait and return the id of the run that resumes. The wait raises WaitCancelled there.

        Args:
            id: The wait's id, as `app.waits.list` returns it.
            reason: Why, for the record.
            by: Who did it, for the record.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """

        async def act() -> WaitRow:
            return await self._commands.cancel(id, Manual(by, reason))

        run, _ = await self._owner_of(id)
        row, preview = await run_planned(self._store, run, dry_run, version, act, self._children.add_to)
        return row.run if preview is None else preview

    async def fire(
        self,
        token: str,
        data: Any = None,
        *,
        signature: Signature | None = None,
        source: str = "app",
        ip: str | None = None,
    ) -> str:
        """Fire a trigger and return the id of the run that it resumes. A token works once.

        Args:
            token: The trigger's token, or its URL.
            data: What the waiting step receives: any JSON value. Leave it out of a signed call.
            signature: The signature of the call, for triggers that require one. The step receives its body.
            source: Where the call came from, such as `http`; recorded with the event `trigger.fired`.
            ip: Address of the caller; recorded with the event `trigger.fired`.
        """
        return await self._triggers.fire(token, data, signature, CallOrigin(source, ip))

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

    async def _owner_of(self, id: str) -> tuple[str, str]:
        """Return the run of a wait, and the name of its flow."""
        row = await find_wait(self._store.wait_row, id)
        run = await self._store.run(row.run) if row.kind == EVENT else None
        return row.run, run.flow if run is not None else ""


def describe_wait(wait: WaitView, bodies: EventBodies) -> str:
    """Return what a wait is for and until when, without secrets: `waiting for event order.paid until 2026-…`."""
    if wait.unreadable is not None:
        return wait.unreadable
    if wait.kind == TIME:
        return f"sleeping until {wait.until}"
    if wait.kind == EVENT:
        match = f" {msgspec.json.encode(bodies.redact_value(wait.match)).decode()}" if wait.match else ""
        what = f"event {wait.event}{match}"
    elif wait.kind == CALL:
        runs = f"{wait.children:,} runs" if wait.children is not None else f"run {wait.child}"
        what = f"{runs} of flow {wait.name}"
    else:
        what = f"trigger {wait.name!r}"
    return f"waiting for {what}" + (f" until {wait.until}" if wait.until is not None else "")


def wait_view(row: WaitRow) -> WaitView:
    """Return a wait with its body decoded, or why it cannot be read."""
    until = to_iso(row.due) if row.due is not None else None
    ended = to_iso(row.settled) if row.settled is not None else None
    try:
        body = read_body(row)
    except UnreadableRecord as problem:
        return WaitView(
            row.id, row.run, None, row.kind, "", "", until,
            event=row.topic, unreadable=str(problem), state=row.state, ended=ended,
        )  # fmt: skip
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
        child=body.children,
        children=body.many,
        state=row.state,
        ended=ended,
        payload=body.payload,
    )


def _add_result(view: WaitView, memo: bytes) -> WaitView:
    result = decode_result(memo)
    value = unpack(bytes(result.value))
    caller, manual = result.caller, result.manual or Manual()
    return msgspec.structs.replace(
        view,
        data=value.get("data") if view.kind == EVENT and isinstance(value, dict) else value,
        source=caller.source if caller is not None else None,
        ip=caller.ip if caller is not None else None,
        manual=result.manual is not None,
        by=manual.by,
        reason=manual.reason,
    )
