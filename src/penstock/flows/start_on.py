"""Flows that an event starts: the waits that represent them in the store, and their inputs."""

from __future__ import annotations

import inspect
from collections.abc import Container, Mapping
from typing import Any

from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.errors import SchemaViolation
from ..core.events import Event
from ..core.ids import check_id, digest
from ..core.json_match import contains, index_key
from ..core.payload import pack, unpack
from ..durable.journal import encode
from ..durable.wait_records import WaitBody
from ..handlers.registry import Flow
from ..handlers.subscriptions import Subscription, read_mapped
from ..ports.store import WaitRow
from ..ports.unit import NewWait, SettleWait, Unit, WaitChange
from .decide import MappedInput

FLOW = "flow"


async def find_start(flow: Flow, event: Event) -> MappedInput | None:
    """Return the input and the options of a flow that an event starts; None if no `start_on` matches."""
    for on in flow.definition.start_on:
        if on.kind == event.kind and await _matches(on, event):
            returned = None if on.map is None else await _settle(on.map(event))
            value, options = (event.data, None) if on.map is None else read_mapped(returned, on.has_options)
            return MappedInput(pack(value, f"the input of flow {flow.name!r}"), options)
    return None


async def started_run_id(flow: Flow, start: MappedInput, default: str) -> str:
    """Return the id of a run that an event starts: the `jobId` that `map` returned, the key that the flow declares, or
    else `default`."""
    input, options = start.input, start.options
    if options is not None and options.job_id is not None and options.dedupe is not False:
        return check_id(options.job_id, "opts.jobId")
    try:
        key = await flow.definition.entry.handler.evaluate_key(unpack(input), flow.name)
    except SchemaViolation:
        return default  # the run starts and fails with it
    return default if key is None else check_id(key, "idempotency key")


async def _matches(on: Subscription, event: Event) -> bool:
    if on.when is None:
        return True
    return bool(await _settle(on.when(event))) if callable(on.when) else contains(event.data, dict(on.when))


async def _settle(value: Any) -> Any:
    """Return what a function returned; one of another language must be awaited."""
    return await value if inspect.isawaitable(value) else value


class StartOnWaits:
    """Registers a wait for each declared `start_on`, and cancels the waits that the code no longer declares."""

    def __init__(self, runtime: Runtime) -> None:
        self._store = runtime.store
        self._committer = runtime.committer
        self._unit_id = runtime.new_unit_id

    async def register(self, flows: Mapping[str, Flow]) -> None:
        await self.replace({wait.id: wait for flow in flows.values() for wait in self._waits_of(flow)}, flows)

    async def replace(self, wanted: Mapping[str, NewWait], scopes: Container[str]) -> None:
        """Register the waits by which events start the flows or dags `scopes`, and cancel their others."""
        stored: dict[str, WaitRow] = {}
        after: str | None = None
        while rows := await self._store.waits("", kind=FLOW, after=after):
            after = rows[-1].id
            stored.update((row.id, row) for row in rows)
        changes: list[WaitChange] = [wait for id, wait in wanted.items() if not _is_same(stored.get(id), wait)]
        # Another process may know flows that this one does not: keep their waits.
        undeclared = [row.id for row in stored.values() if row.scope in scopes and row.id not in wanted]
        changes += [SettleWait(id, "cancelled", lenient=True) for id in undeclared]
        if changes:
            unit = Unit(self._unit_id(), waits=changes)
            await self._committer.submit(CommitRequest(lambda _v, _r: unit, outlasts_outage=True))

    def _waits_of(self, flow: Flow) -> list[NewWait]:
        waits = []
        for on in flow.definition.start_on:
            match = dict(on.when) if isinstance(on.when, Mapping) else {}
            waits.append(build_start_wait(flow.name, on.kind, match))
        return waits


def build_start_wait(name: str, kind: str, match: dict[str, Any]) -> NewWait:
    """Build the wait that stands for the start of a flow or dag by events of a kind."""
    id = f"f-{digest(f'{name} {kind} {encode(match)!r}'.encode())}"
    body = WaitBody(name, 0, match=match)
    return NewWait(id, "", name, FLOW, encode(body), None, "", kind, index_key(match))


def _is_same(row: WaitRow | None, wait: NewWait) -> bool:
    return row is not None and (row.body, row.topic, row.key) == (wait.body, wait.topic, wait.key)
