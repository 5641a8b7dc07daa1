"""Delivering events to whoever waits for them, in this run or in any other, and to flows that an event starts.

The store tells of an event someone may wait for by a job, in the write that appends the event; a gate that is opened
tells of itself by a job that looks back. Whichever comes second finds the other, so none is missed; the gate is closed
once, so none is had twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from ..core.clock import Clock
from ..core.errors import HandlerError, NotFound, PayloadError, PenstockError, Permanent, RunError
from ..core.events import Event
from ..core.ids import digest
from ..core.matching import contains, filed_under, keys_of
from ..core.payload import pack
from ..core.retry import Backoff, RetryPolicy
from ..jobs.committer import Committer, Intent
from ..jobs.definition import Handler
from ..jobs.engine import JobWork, QuietWork
from ..jobs.gates import EVENT, GateBody, GateResult, closing, decode_body, event_ref
from ..jobs.journal import encode
from ..jobs.sleeping import LOOK_BACK
from ..ports.store import Store, WaitRow
from ..ports.unit import DELIVER, DELIVERIES, EMIT, Claim, CloseWait, OpenWait, Receipt, Refused, Unit, WaitChange
from ..telemetry.recorder import Recorder
from .definition import Subscription
from .registry import Flow

PATIENT = RetryPolicy(attempts=1_000, backoff=Backoff("exponential", 200, 60_000))
PAGE = 200
FLOW = "flow"

StartFlow = Callable[[str, str, Event], Awaitable[None]]  # flow, run, event
EmitTo = Callable[[str, str, Any, str], Awaitable[None]]  # run, kind, data, key


class Deliveries:
    """Opens the jobs of the queue on which events are delivered."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        recorder: Recorder,
        clock: Clock,
        unit_id: Callable[[], str],
        start_flow: StartFlow,
        emit_to: EmitTo,
    ) -> None:
        self._store = store
        self._committer = committer
        self._recorder = recorder
        self._clock = clock
        self._unit_id = unit_id
        self._start_flow = start_flow
        self._emit_to = emit_to
        self._handlers = {
            name: Handler(name=name, fn=fn, queue=DELIVERIES, retry=PATIENT)
            for name, fn in ((DELIVER, self.deliver), (LOOK_BACK, self.look_back), (EMIT, self.emit))
        }

    async def open(self, claim: Claim) -> JobWork:
        handler = self._handlers.get(claim.name)
        if handler is None:
            raise PenstockError(f"queue {DELIVERIES} is the engine's own and has no job {claim.name!r}")
        return QuietWork(claim, handler, self._recorder, self._clock, self._unit_id)

    async def deliver(self, payload: dict[str, str]) -> None:
        """Opens every gate that waits for an event."""
        stream, id = payload["stream"], payload["id"]
        found = await self._store.read(stream, after=_before(id), limit=1)
        if not found or found[0].id != id:
            return  # trimmed meanwhile
        event = found[0]
        after: str | None = None
        keys, cursor = keys_of(event.data), payload["cursor"]
        problems: list[BaseException] = []
        # A gate that was opened later looks back by itself, if it is to have what came before it.
        while rows := await self._store.listening(event.kind, keys, before=cursor, after=after, limit=PAGE):
            after = rows[-1].id
            offers = await asyncio.gather(*(self._offer(row, event, stream) for row in rows), return_exceptions=True)
            problems += [problem for problem in offers if isinstance(problem, BaseException)]
            if len(rows) < PAGE:
                break
        if problems:
            raise problems[0]  # the others have had it; it is offered again to those who could not take it

    async def look_back(self, payload: dict[str, str]) -> None:
        """Opens one gate if what it waits for has happened before it was there."""
        row = await self._store.wait_row(payload["wait"])
        if row is None or row.state != "open" or row.topic is None:
            return
        body = decode_body(row.body)
        begun = self._recorder.flow(row.run)
        after: str | None = None
        while items := await self._store.told(row.topic, since=begun, after=after, limit=PAGE):
            for item in items:
                after = item.cursor
                if self._fits(body, item.event, item.stream):
                    receipt = await self._open(row, body, item.event, item.stream)
                    if receipt != Refused("duplicate", _once(row, item.stream, item.event.id)):
                        return
            if len(items) < PAGE:
                return

    async def emit(self, payload: dict[str, Any]) -> None:
        """Tells a run of an event that came with someone's transaction; what that starts is decided now."""
        try:
            await self._emit_to(payload["run"], payload["kind"], payload["data"], payload["key"])
        except (NotFound, RunError, PayloadError, HandlerError) as problem:
            # The run ended meanwhile, or never began: a dead letter says so.
            raise Permanent(f"{payload['kind']!r} cannot be told to run {payload['run']!r}: {problem}") from problem

    async def _offer(self, row: WaitRow, event: Event, stream: str) -> None:
        body = decode_body(row.body)
        if self._fits(body, event, stream):
            if row.kind == EVENT:
                await self._open(row, body, event, stream)
            else:
                await self._start_flow(row.scope, run_of(row, stream, event.id), event)

    def _fits(self, body: GateBody, event: Event, stream: str) -> bool:
        if event_ref(stream, event.id) in body.taken:
            return False
        return contains(event.data, body.match) if body.match else True

    async def _open(self, row: WaitRow, body: GateBody, event: Event, stream: str) -> Receipt:
        result = GateResult(self._clock.now_ms(), msgspec.Raw(encode(event)), ref=event_ref(stream, event.id))
        unit = closing(row, body, result, self._recorder, self._unit_id(), "Event received")
        if body.shared:
            unit.once = _once(row, stream, event.id)
        # Refused when something else was first, or the run is over: then there is nothing to do.
        return await self._committer.submit(Intent(lambda _v, _r: unit, patient=True))


def run_of(row: WaitRow, stream: str, id: str) -> str:
    """The run an event starts: one for each event, however often it is delivered, by whichever of a flow's gates."""
    return f"{row.scope}-{digest(f'{row.scope} {stream} {id}'.encode())}"


def _once(row: WaitRow, stream: str, id: str) -> str:
    """A step that stands before several gates of one kind has each event once."""
    return f"{row.scope}/{event_ref(stream, id)}"


def _before(id: str) -> str | None:
    ms, _, seq = id.partition("-")
    return f"{ms}-{int(seq) - 1}" if int(seq) > 1 else None


def start_inputs(flow: Flow, event: Event) -> list[bytes]:
    """What a flow that starts on an event is given; nothing if its own functions do not want it."""
    inputs = []
    for on in flow.definition.start_on:
        if on.kind == event.kind and _wanted(on, event):
            inputs.append(pack(event.data if on.map is None else on.map(event), f"the input of flow {flow.name!r}"))
    return inputs[:1]


def _wanted(on: Subscription, event: Event) -> bool:
    if on.when is None:
        return True
    return bool(on.when(event)) if callable(on.when) else contains(event.data, dict(on.when))


class Starters:
    """Keeps the gates by which events start flows: opened when a worker begins, closed when no code has them."""

    def __init__(self, store: Store, committer: Committer, clock: Clock, unit_id: Callable[[], str]) -> None:
        self._store = store
        self._committer = committer
        self._clock = clock
        self._unit_id = unit_id

    async def keep(self, flows: Mapping[str, Flow]) -> None:
        wanted = {wait.id: wait for flow in flows.values() for wait in self._gates(flow)}
        there: dict[str, WaitRow] = {}
        after: str | None = None
        while rows := await self._store.waits(kind=FLOW, after=after):
            after = rows[-1].id
            there.update((row.id, row) for row in rows)
        changes: list[WaitChange] = [wait for id, wait in wanted.items() if not _same(there.get(id), wait)]
        # Of flows this process does not know, another one may.
        gone = [row.id for row in there.values() if row.scope in flows and row.id not in wanted]
        changes += [CloseWait(id, "cancelled", lenient=True) for id in gone]
        if changes:
            unit = Unit(self._unit_id(), waits=changes)
            await self._committer.submit(Intent(lambda _v, _r: unit, patient=True))

    def _gates(self, flow: Flow) -> list[OpenWait]:
        gates = []
        for on in flow.definition.start_on:
            match = dict(on.when) if isinstance(on.when, Mapping) else {}
            id = f"f-{digest(f'{flow.name} {on.kind} {encode(match)!r}'.encode())}"
            body = GateBody(flow.name, 0, match=match)
            gates.append(OpenWait(id, "", flow.name, FLOW, encode(body), None, "", on.kind, filed_under(match)))
        return gates


def _same(row: WaitRow | None, wait: OpenWait) -> bool:
    return row is not None and (row.body, row.topic, row.key) == (wait.body, wait.topic, wait.key)
