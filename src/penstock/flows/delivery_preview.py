"""Dry runs of an emitted event: what its delivery would do after the commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container

import msgspec

from ..commit.preview import CommandPlan
from ..commit.runtime import Runtime
from ..core.errors import UnreadableRecord
from ..core.events import Event, build_event
from ..core.ids import event_id
from ..core.json_match import contains, index_keys
from ..durable.journal import encode
from ..durable.wait_records import EVENT, WaitResult, event_ref, read_body, resolve_wait
from ..ports.store import WaitRow
from ..ports.unit import NewEvent

PAGE = 200
MAX_WAITS = 1_000  # pending waits of its kind that an event is compared with
UNKNOWN_ID = event_id(0, 0)  # the store assigns the id when it writes the event

StartFlow = Callable[[str, str, Event], Awaitable[None]]  # flow, run, event


class DeliveryPreview:
    """Adds to a plan the waits that its events would resolve and the flows that they would start."""

    def __init__(self, runtime: Runtime, start_flow: StartFlow, flows: Callable[[], Container[str]]) -> None:
        self._runtime = runtime
        self._start_flow = start_flow
        self._flows = flows

    async def add_to(self, plan: CommandPlan) -> None:
        """Read the waits that match the events of a plan, and add what their delivery would write."""
        for new in [new for unit in plan.units for new in unit.events if new.kind is not None]:
            event, reached = _read_event(new), set[str]()
            for row in await self._read_waits(event):
                await self._deliver(plan, row, new.stream, event, reached)

    async def _read_waits(self, event: Event) -> list[WaitRow]:
        keys, rows = index_keys(event.data), list[WaitRow]()
        indexed = sorted(keys) if keys is not None else None
        while len(rows) < MAX_WAITS:
            after = rows[-1].id if rows else None
            page = await self._runtime.store.waits_for_topic(event.kind, indexed, after=after, limit=PAGE)
            rows += page
            if len(page) < PAGE:
                break
        return rows

    async def _deliver(self, plan: CommandPlan, row: WaitRow, stream: str, event: Event, reached: set[str]) -> None:
        try:
            body = read_body(row)
        except UnreadableRecord:
            return  # the delivery lets its step register the wait again
        if body.match and not contains(event.data, body.match):
            return
        if row.kind != EVENT:
            await self._start(plan, row.scope, event)
            return
        if body.shared and row.scope in reached:
            return  # a step with several waits for one kind receives each event once
        reached.add(row.scope)
        runtime = self._runtime
        result = WaitResult(runtime.clock.now_ms(), msgspec.Raw(encode(event)), ref=event_ref(stream, event.id))
        plan.units.append(resolve_wait(row, body, result, runtime.bodies, runtime.new_unit_id(), "Event received"))

    async def _start(self, plan: CommandPlan, flow: str, event: Event) -> None:
        """Start the flow into the plan. Only a process with its code knows whether `when` accepts the event."""
        collected = len(plan.units)
        if flow in self._flows():
            await self._start_flow(flow, f"{flow}-new", event)
            if len(plan.units) == collected:
                return
        if flow not in plan.starts:
            plan.starts.append(flow)


def _read_event(new: NewEvent) -> Event:
    """Return the event as waits receive it: before redaction."""
    return build_event(new.stream, UNKNOWN_ID, msgspec.json.decode(new.original or new.body))
