"""Commands of an operator on any wait: resolve it by hand, or cancel it. Each commits one unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..commit.command_sink import CommandSink
from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.clock import to_iso
from ..core.errors import BadArgument, UnknownWait, WaitSettled
from ..core.events import Event
from ..core.payload import pack
from ..core.text import shorten
from ..ports.store import WaitRow
from ..ports.unit import Committed, Unit
from .child_runs import cancel_job
from .journal import encode
from .trigger_commands import TriggerCommands
from .wait_records import (
    CALL,
    EVENT,
    RESOLVED_MANUALLY,
    TIME,
    TRIGGER,
    CallOrigin,
    Manual,
    WaitBody,
    WaitResult,
    cancel_wait,
    read_body,
    resolve_wait,
)

KINDS = (TIME, EVENT, TRIGGER, CALL)
BY_HAND = CallOrigin("manual")


class WaitCommands:
    """Resolves and cancels waits by hand, through one sink."""

    def __init__(self, runtime: Runtime, sink: CommandSink) -> None:
        self._store = runtime.store
        self._sink = sink
        self._bodies = runtime.bodies
        self._clock = runtime.clock
        self._unit_id = runtime.new_unit_id
        self._triggers = TriggerCommands(runtime, sink)

    async def resolve(self, id: str, data: Any, manual: Manual, check: Callable[[str, bytes], None]) -> WaitRow:
        """Resolve a pending wait: skip a sleep, supply an event's data, or fire a trigger. `check` raises if the data
        does not match what is declared for an event kind."""
        row, body = await self._find(id)
        if row.kind == TRIGGER:
            await self._triggers.resolve(row, body, data, caller=BY_HAND, manual=manual)
            return row
        if row.kind == TIME and data is not None:
            raise BadArgument(f"a sleep takes no data, got {shorten(data)}; leave data out")
        result = WaitResult(self._clock.now_ms(), manual=manual)
        if row.kind == EVENT:
            assert row.topic is not None
            packed = pack(data, f"the data of {row.topic}")
            check(row.topic, packed)
            result.value = msgspec.Raw(encode(self._event(row, body, packed, manual)))
        if row.kind == CALL:
            result.value = msgspec.Raw(pack(data, f"the result of {body.key}"))
        unit = resolve_wait(row, body, result, self._bodies, self._unit_id(), RESOLVED_MANUALLY)
        await self._submit(row, _cancel_children(row, unit))
        return row

    async def cancel(self, id: str, manual: Manual) -> WaitRow:
        """Cancel a pending wait: its step resumes, and the wait raises WaitCancelled there."""
        row, body = await self._find(id)
        unit = cancel_wait(row, body, manual, self._clock.now_ms(), self._bodies, self._unit_id())
        await self._submit(row, _cancel_children(row, unit))
        return row

    def _event(self, row: WaitRow, body: WaitBody, data: bytes, manual: Manual) -> Event:
        """Build the event that the step receives. It is in no stream: only this step gets it."""
        now = self._clock.now_ms()
        meta = {"manual": msgspec.to_builtins(manual)}
        raw: Any = msgspec.Raw(data)
        corr = body.correlation_id or row.run
        return Event(f"{now}-0", to_iso(now), row.topic or "", row.run, correlation_id=corr, data=raw, meta=meta)

    async def _find(self, id: str) -> tuple[WaitRow, WaitBody]:
        row = await find_wait(self._store.wait_row, id)
        _check_pending(row)
        return row, read_body(row)

    async def _submit(self, row: WaitRow, unit: Unit) -> None:
        receipt = await self._sink.submit(CommitRequest(lambda _v, _r: unit))
        if not isinstance(receipt, Committed):
            now = await self._store.wait_row(row.id)
            _check_pending(now if now is not None else row)
            raise WaitSettled(f"wait {row.id} was just settled by another call; run `penstock waits show {row.id}`")


def _cancel_children(row: WaitRow, unit: Unit) -> Unit:
    """Cancel the runs that nothing waits for any more."""
    if row.kind == CALL:
        unit.jobs = [*unit.jobs, cancel_job(row.id, "the call that waited for it was settled by hand")]
    return unit


async def find_wait(read: Callable[[str], Any], id: str) -> WaitRow:
    """Return a wait of a step by its id. Raise UnknownWait if there is none."""
    row: WaitRow | None = await read(id)
    if row is None or row.kind not in KINDS:
        raise UnknownWait(f"no wait with id {shorten(id)}; run `penstock waits` to see the pending waits and their ids")
    return row


def _check_pending(row: WaitRow) -> None:
    if row.state != "pending":
        raise WaitSettled(f"wait {row.id} is already {row.state}; run `penstock waits show {row.id}` to see how")
