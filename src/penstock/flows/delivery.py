"""Events that are on their way to whoever waits for them: one, or several of a kind that were committed together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..context.context import Context
from ..core.errors import HandlerError, NotFound, PayloadError, PenstockError, Permanent, RunError
from ..core.events import Event, build_event
from ..core.ids import digest
from ..core.json_match import contains, index_keys
from ..core.retry import Backoff, RetryPolicy
from ..durable.journal import encode
from ..durable.session import LOOK_BACK
from ..durable.wait_records import EVENT, WaitBody, WaitResult, decode_body, event_ref, resolve_wait
from ..handlers.handler import Handler
from ..jobs.engine import InternalJobWork, JobWork
from ..ports.store import WaitRow
from ..ports.unit import DELIVER, DELIVERIES, EMIT, Claim, Completed, Receipt, Refused, Released, Unit
from ..worker.outcomes import Failure, Interruption, Success


class DeliveredEvent(msgspec.Struct, frozen=True):
    """An event, and where it stands in the order of all streams."""

    stream: str
    cursor: str
    event: Event


class EventBatch:
    """Events of one kind, oldest first. No gate was opened between them: who may have one may have all of them."""

    def __init__(self, told: Sequence[DeliveredEvent]) -> None:
        self.events = told
        self.kind = told[0].event.kind
        self.before = told[0].cursor
        self._filed: dict[str, list[int]] = {}
        self._anywhere: list[int] = []  # those with too many values to be filed under each
        for n, one in enumerate(told):
            keys = index_keys(one.event.data)
            if keys is None:
                self._anywhere.append(n)
            for key in keys or ():
                self._filed.setdefault(key, []).append(n)

    @property
    def keys(self) -> list[str] | None:
        """Under which those who may want one of them are filed; None: under any."""
        return None if self._anywhere else sorted(self._filed)

    def candidates(self, row: WaitRow) -> list[DeliveredEvent]:
        """The events that may be what a gate waits for, oldest first."""
        filed = self._filed.get(row.key or "", [])
        return [self.events[n] for n in (sorted([*filed, *self._anywhere]) if self._anywhere else filed)]


DELIVERY_RETRY = RetryPolicy(attempts=1_000, backoff=Backoff("exponential", 200, 60_000))
PAGE = 200
Resolutions = dict[tuple[str, int], list[Unit]]  # by job and attempt: the gates it opens as it ends

Offer = Callable[[], Coroutine[Any, Any, None]]
StartFlow = Callable[[str, str, Event], Coroutine[Any, Any, None]]  # flow, run, event
EmitTo = Callable[[str, str, Any, str], Awaitable[None]]  # run, kind, data, key


class DeliveryEngine:
    """Opens the jobs of the queue on which events are delivered."""

    kind = "delivery"

    def __init__(
        self,
        runtime: Runtime,
        start_flow: StartFlow,
        emit_to: EmitTo,
    ) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._committer = runtime.committer
        self._bodies = runtime.bodies
        self._clock = runtime.clock
        self._unit_id = runtime.new_unit_id
        self._start_flow = start_flow
        self._resolutions: Resolutions = {}
        self._emit_to = emit_to
        self._handlers = {
            name: Handler(name=name, fn=fn, queue=DELIVERIES, retry=DELIVERY_RETRY)
            for name, fn in ((DELIVER, self.deliver), (LOOK_BACK, self.look_back), (EMIT, self.emit))
        }

    async def open(self, claim: Claim) -> JobWork:
        handler = self._handlers.get(claim.name)
        if handler is None:
            raise PenstockError(f"queue {DELIVERIES} is the engine's own and has no job {claim.name!r}")
        return DeliveryWork(self._runtime, claim, handler, self._resolutions)

    async def deliver(self, payload: dict[str, Any], ctx: Context) -> None:
        """Opens every gate that waits for an event, or for one of several that were committed together."""
        found = [await self._load_event(**one) for one in payload.get("events", [payload])]
        told = [one for one in found if one is not None]
        if not told:
            return  # trimmed meanwhile
        bundle = EventBatch(told)
        after: str | None = None
        opening: list[Unit] = []
        problems: list[BaseException] = []
        # A gate that was opened later looks back by itself, if it is to have what came before it.
        while rows := await self._store.waits_for_topic(
            bundle.kind, bundle.keys, before=bundle.before, after=after, limit=PAGE
        ):
            after = rows[-1].id
            await self._resolve_all(opening)
            opening, others = self._match_waits(rows, bundle)
            for offers in others:  # one event after the other
                answers = await asyncio.gather(*(offer() for offer in offers), return_exceptions=True)
                problems += [problem for problem in answers if isinstance(problem, BaseException)]
            if len(rows) < PAGE:
                break
        if problems:
            await self._resolve_all(opening)
            raise problems[0]  # the others have had it; it is offered again to those who could not take it
        if opening:
            self._resolutions[ctx.job_id, ctx.attempt] = opening

    async def _load_event(
        self, stream: str, id: str, cursor: str, body: dict[str, Any] | None = None
    ) -> DeliveredEvent | None:
        """The event a delivery is about; some stores send it along."""
        if body is not None:
            return DeliveredEvent(stream, cursor, build_event(stream, id, body))
        found = await self._store.read(stream, after=_event_before(id), limit=1)
        return DeliveredEvent(stream, cursor, found[0]) if found and found[0].id == id else None

    def _match_waits(self, rows: list[WaitRow], bundle: EventBatch) -> tuple[list[Unit], list[list[Offer]]]:
        """Of those who wait for one of the events: units that may be one, and what has to be done for each alone, by
        event."""
        opening: list[Unit] = []
        others: dict[str, list[Offer]] = {one.cursor: [] for one in bundle.events}
        for row in rows:
            body = decode_body(row.body)
            fitting = (one for one in bundle.candidates(row) if self._matches(body, one.event, one.stream))
            if row.kind == EVENT and not body.shared:
                opening += [self._unit(row, body, one.event, one.stream) for one in islice(fitting, 1)]
                continue
            for one in fitting:
                others[one.cursor].append(partial(self._deliver_to, row, body, one))
        return opening, list(others.values())

    async def _deliver_to(self, row: WaitRow, body: WaitBody, told: DeliveredEvent) -> None:
        event, stream = told.event, told.stream
        if row.kind == EVENT:
            await self._resolve(row, body, event, stream)
        else:
            await self._start_flow(row.scope, started_run_id(row, stream, event.id), event)

    async def _resolve_all(self, units: list[Unit]) -> None:
        """Opens gates by one write, or by one each if something else was first at one of them."""
        if not units:
            return
        whole = _merge_units(Unit(self._unit_id()), units)
        if isinstance(await self._submit(whole), Refused):
            await asyncio.gather(*map(self._submit, units))

    async def look_back(self, payload: dict[str, str]) -> None:
        """Opens one gate if what it waits for has happened before it was there."""
        row = await self._store.wait_row(payload["wait"])
        if row is None or row.state != "pending" or row.topic is None:
            return
        body = decode_body(row.body)
        begun = self._bodies.flow(row.run)
        after: str | None = None
        while items := await self._store.events_by_kind(row.topic, since=begun, after=after, limit=PAGE):
            for item in items:
                after = item.cursor
                if self._matches(body, item.event, item.stream):
                    receipt = await self._resolve(row, body, item.event, item.stream)
                    if receipt != Refused("duplicate", _once_key(row, item.stream, item.event.id)):
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

    def _matches(self, body: WaitBody, event: Event, stream: str) -> bool:
        if event_ref(stream, event.id) in body.taken:
            return False
        return contains(event.data, body.match) if body.match else True

    async def _resolve(self, row: WaitRow, body: WaitBody, event: Event, stream: str) -> Receipt:
        unit = self._unit(row, body, event, stream)
        if body.shared:
            unit.once_key = _once_key(row, stream, event.id)
        return await self._submit(unit)

    def _unit(self, row: WaitRow, body: WaitBody, event: Event, stream: str) -> Unit:
        result = WaitResult(self._clock.now_ms(), msgspec.Raw(encode(event)), ref=event_ref(stream, event.id))
        return resolve_wait(row, body, result, self._bodies, self._unit_id(), "Event received")

    async def _submit(self, unit: Unit) -> Receipt:
        """Refused when something else was first, or the run is over: then there is nothing to do."""
        return await self._committer.submit(CommitRequest(lambda _v, _r: unit, outlasts_outage=True))


class DeliveryWork(InternalJobWork):
    """A claim of a delivery: the gates it found are opened by the write that ends it.

    Refused because something else was first at one of them, it is given back and looks again.
    """

    def __init__(
        self,
        runtime: Runtime,
        claim: Claim,
        handler: Handler,
        opening: Resolutions,
    ) -> None:
        super().__init__(runtime, claim, handler)
        self._resolutions = opening

    def _take_resolutions(self) -> list[Unit]:
        return self._resolutions.pop((self.claim.job, self.claim.attempt), [])

    def on_success(self, success: Success) -> CommitRequest:  # noqa: ARG002
        unit = _merge_units(Unit(self._unit_id(), claim=self.claim, outcome=Completed()), self._take_resolutions())
        return CommitRequest(lambda _v, _r: unit, outlasts_outage=True)

    def on_failure(self, failure: Failure) -> CommitRequest:
        self._take_resolutions()
        return super().on_failure(failure)

    def on_interruption(self, interruption: Interruption) -> CommitRequest:
        self._take_resolutions()
        return self._request(interruption.output, Released(), [])


def _merge_units(whole: Unit, units: list[Unit]) -> Unit:
    for unit in units:
        whole.waits += unit.waits
        whole.memos += unit.memos
        whole.events += unit.events
        whole.wakes += unit.wakes
    return whole


def started_run_id(row: WaitRow, stream: str, id: str) -> str:
    """The run an event starts: one for each event, however often it is delivered, by whichever of a flow's gates."""
    return f"{row.scope}-{digest(f'{row.scope} {stream} {id}'.encode())}"


def _once_key(row: WaitRow, stream: str, id: str) -> str:
    """A step that stands before several gates of one kind has each event once."""
    return f"{row.scope}/{event_ref(stream, id)}"


def _event_before(id: str) -> str | None:
    ms, _, seq = id.partition("-")
    return f"{ms}-{int(seq) - 1}" if int(seq) > 1 else None
