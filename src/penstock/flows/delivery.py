"""Delivery of events to the waits and flows that listen to them, one by one or several of a kind at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, TypeVar

import msgspec

from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..context.context import Context
from ..core.errors import (
    BadArgument,
    HandlerError,
    NotFound,
    NotRouted,
    PayloadError,
    PenstockError,
    Permanent,
    RunError,
    UnreadableRecord,
)
from ..core.events import Event, build_event, describe_unreadable
from ..core.ids import BadId, digest, event_seq
from ..core.json_match import contains, index_keys
from ..core.payload import DECODE_ERRORS
from ..core.retry import Backoff, RetryPolicy
from ..core.trace_context import HEADER, join_trace, read_carrier
from ..durable.journal import encode
from ..durable.session import LOOK_BACK
from ..durable.wait_records import EVENT, WaitBody, WaitResult, event_ref, read_body, resolve_wait
from ..handlers.handler import Handler
from ..jobs.cancellation import JobCancellation, JobCommands
from ..jobs.engine import InternalJobWork, JobOptions, JobWork, missing_handler, read_options
from ..jobs.routed_jobs import JobRouteWork
from ..ports.store import WaitRow
from ..ports.unit import (
    ALERT,
    CANCEL_CHILDREN,
    CANCEL_RUN,
    CHILD_ENDED,
    DELIVER,
    DELIVERIES,
    EMIT,
    EMIT_ENTITY,
    FOLLOW_PARENT,
    ROUTE_JOB,
    ROUTE_START,
    START,
    START_MANY,
    Claim,
    Completed,
    Receipt,
    Refused,
    Released,
    Unit,
)
from ..worker.child_runs import CallCancellation, ChildEnd, ChildRuns, ManyStarts, ParentChange, RunStart
from ..worker.outcomes import Failure, Interruption, Success
from .engine import FlowEngine
from .routed_starts import StartRouteWork

T = TypeVar("T")


def read_trace(event: Event) -> str | None:
    """Return the `traceparent` of what emitted an event."""
    return read_carrier(event.meta) if event.meta is not None and HEADER in event.meta else None


class DeliveredEvent(msgspec.Struct, frozen=True):
    """An event with its stream and its cursor in the feed of all streams."""

    stream: str
    cursor: str
    event: Event


class EventBatch:
    """Events of one kind, oldest first. No wait was registered between them: a wait may match any of them."""

    def __init__(self, events: Sequence[DeliveredEvent]) -> None:
        self.events = events
        self.kind = events[0].event.kind
        self.before = events[0].cursor
        self._by_key: dict[str, list[int]] = {}
        self._unindexed: list[int] = []  # those with too many values to index
        for n, one in enumerate(events):
            keys = index_keys(one.event.data)
            if keys is None:
                self._unindexed.append(n)
            for key in keys or ():
                self._by_key.setdefault(key, []).append(n)

    @property
    def keys(self) -> list[str] | None:
        """The index keys of waits that may match one of the events; None means any key."""
        return None if self._unindexed else sorted(self._by_key)

    def candidates(self, row: WaitRow) -> list[DeliveredEvent]:
        """Return the events that a wait may match, oldest first."""
        indexed = self._by_key.get(row.key or "", [])
        return [self.events[n] for n in (sorted([*indexed, *self._unindexed]) if self._unindexed else indexed)]


log = logging.getLogger("penstock.flows")
DELIVERY_RETRY = RetryPolicy(attempts=1_000, backoff=Backoff("exponential", 200, 60_000))
PAGE = 200
Resolutions = dict[tuple[str, int], list[Unit]]  # by job and attempt: the waits its last commit resolves

Delivery = Callable[[], Coroutine[Any, Any, None]]
StartFlow = Callable[[str, str, Event], Coroutine[Any, Any, None]]  # flow, run, event
EmitTo = Callable[[str, str, Any, str, Sequence[str]], Awaitable[None]]  # run, kind, data, key, tags
EmitToEntity = Callable[[dict[str, Any]], Awaitable[None]]
SendAlert = Callable[[dict[str, Any]], Awaitable[None]]


class DeliveryEngine:
    """Opens claims of the queue that delivers events."""

    kind = "delivery"

    def __init__(
        self,
        runtime: Runtime,
        flows: FlowEngine,
        start_flow: StartFlow,
        emit_to: EmitTo,
        children: ChildRuns,
        emit_to_entity: EmitToEntity,
        send_alert: SendAlert,
    ) -> None:
        self._runtime = runtime
        self._flows = flows
        self._emit_to_entity = emit_to_entity
        self._send_alert = send_alert
        self._jobs = JobCommands(runtime)
        self._store = runtime.store
        self._committer = runtime.committer
        self._bodies = runtime.bodies
        self._clock = runtime.clock
        self._unit_id = runtime.new_unit_id
        self._start_flow = start_flow
        self._resolutions: Resolutions = {}
        self._emit_to = emit_to
        self._children = children
        self._handlers = {
            name: Handler(name=name, fn=fn, queue=DELIVERIES, retry=DELIVERY_RETRY)
            for name, fn in (
                (DELIVER, self.deliver),
                (LOOK_BACK, self.look_back),
                (EMIT, self.emit),
                (EMIT_ENTITY, self.emit_entity),
                (START, self.start),
                (CANCEL_CHILDREN, self.cancel_children),
                (START_MANY, self.start_many),
                (CHILD_ENDED, self.end_child),
                (CANCEL_RUN, self.cancel_call),
                (FOLLOW_PARENT, self.follow_parent),
                (ALERT, self.send_alert),
            )
        }

    async def open(self, claim: Claim) -> JobWork:
        if claim.name == ROUTE_START:
            return StartRouteWork(self._runtime, claim, self._flows, self._children)
        if claim.name == ROUTE_JOB:
            return JobRouteWork(self._runtime, claim)
        claim, options = read_options(claim)
        handler = self._handlers.get(claim.name) or missing_handler(
            claim.name, DELIVERIES, PenstockError(f"queue {DELIVERIES} is internal and has no job {claim.name!r}")
        )
        return DeliveryWork(self._runtime, claim, handler, options or JobOptions(), self._resolutions)

    async def deliver(self, payload: Any, ctx: Context) -> None:
        """Resolve every wait that an event matches, or one of several events that were committed together."""
        delivered, unreadable = _read_delivery(payload)
        if delivered:
            await self._deliver_batch(EventBatch(delivered), ctx, is_last=not unreadable)
        if unreadable:
            # A retry would find the same: the other events are delivered, and a dead letter keeps these.
            raise Permanent(f"{len(unreadable)} of the delivered events cannot be read: {'; '.join(unreadable)[:500]}")

    async def _deliver_batch(self, batch: EventBatch, ctx: Context, *, is_last: bool) -> None:
        after: str | None = None
        resolving: list[Unit] = []
        problems: list[BaseException] = []
        # A wait that was registered later looks back by itself if it accepts earlier events.
        while rows := await self._store.waits_for_topic(
            batch.kind, batch.keys, before=batch.before, after=after, limit=PAGE
        ):
            after = rows[-1].id
            await self._resolve_all(resolving)
            resolving, others = self._match_waits(rows, batch)
            for deliveries in others:  # one event after the other
                answers = await asyncio.gather(*(deliver() for deliver in deliveries), return_exceptions=True)
                problems += [problem for problem in answers if isinstance(problem, BaseException)]
            if len(rows) < PAGE:
                break
        if problems:
            await self._resolve_all(resolving)
            raise problems[0]  # the retry delivers only to those that have not received it
        if is_last and resolving:
            self._resolutions[ctx.job_id, ctx.attempt] = resolving
        else:
            await self._resolve_all(resolving)

    def _match_waits(self, rows: list[WaitRow], batch: EventBatch) -> tuple[list[Unit], list[list[Delivery]]]:
        """Return the units that can be merged into one commit, and by event the deliveries that need their own."""
        resolving: list[Unit] = []
        others: dict[str, list[Delivery]] = {one.cursor: [] for one in batch.events}
        for row in rows:
            try:
                body = read_body(row)
            except UnreadableRecord as problem:
                resolving += self._register_again(row, problem)
                continue
            matching = (one for one in batch.candidates(row) if self._matches(body, one.event, one.stream))
            if row.kind == EVENT and not body.shared:
                resolving += [self._unit(row, body, one.event, one.stream) for one in islice(matching, 1)]
                continue
            for one in matching:
                others[one.cursor].append(partial(self._deliver_to, row, body, one))
        return resolving, list(others.values())

    def _register_again(self, row: WaitRow, problem: UnreadableRecord) -> list[Unit]:
        """Wake the step of a wait that cannot be read: it registers the wait again. A flow's wait has no step."""
        log.error("%s", problem)
        return [Unit(self._unit_id(), wakes=[row.job])] if row.kind == EVENT else []

    async def _deliver_to(self, row: WaitRow, body: WaitBody, delivered: DeliveredEvent) -> None:
        event, stream = delivered.event, delivered.stream
        if row.kind == EVENT:
            await self._resolve(row, body, event, stream)
        else:
            with join_trace(read_trace(event)):
                await self._start_flow(row.scope, default_run_id(row, stream, event.id), event)

    async def _resolve_all(self, units: list[Unit]) -> None:
        """Resolve waits in one commit, or one by one if one of them was settled meanwhile."""
        if not units:
            return
        whole = _merge_units(Unit(self._unit_id()), units)
        if isinstance(await self._submit(whole), Refused):
            await asyncio.gather(*map(self._submit, units))

    async def look_back(self, payload: dict[str, str]) -> None:
        """Resolve one wait if a matching event was recorded before the wait was registered: since the run started, or
        since another wait of the same call was."""
        row = await self._store.wait_row(_read(LOOK_BACK, payload, lambda: str(payload["wait"])))
        if row is None or row.state != "pending" or row.topic is None:
            return
        try:
            body = read_body(row)
        except UnreadableRecord as problem:
            await self._resolve_all(self._register_again(row, problem))
            return
        run_stream = self._bodies.run(body.kind, row.run)
        first = await self._store.wait_row(payload["since"]) if "since" in payload else None
        after: str | None = first.position if first is not None else None
        while items := await self._store.events_by_kind(row.topic, since=run_stream, after=after, limit=PAGE):
            for item in items:
                after = item.cursor
                if item.event.is_unreadable:
                    log.warning("%s; no wait receives it", describe_unreadable(item.stream, item.event))
                elif item.event.kind == row.topic and self._matches(body, item.event, item.stream):
                    receipt = await self._resolve(row, body, item.event, item.stream)
                    if receipt != Refused("duplicate", _once_key(row, item.stream, item.event.id)):
                        return
            if len(items) < PAGE:
                return

    async def emit(self, payload: dict[str, Any]) -> None:
        """Emit an event to a run after the caller's transaction committed, and decide now what it starts."""
        values = (payload[field] for field in ("run", "kind", "data", "key"))
        run, kind, data, key = _read(EMIT, payload, lambda: tuple(values))
        try:
            await self._emit_to(run, kind, data, key, payload.get("tags", ()))
        except NotRouted:
            raise  # it starts soon
        except (NotFound, RunError, PayloadError, HandlerError, UnreadableRecord) as problem:
            # The run has ended meanwhile or was never started: a dead letter records it.
            raise Permanent(f"cannot emit {kind!r} to run {run!r}: {problem}") from problem

    async def emit_entity(self, payload: dict[str, Any]) -> None:
        """Emit an event to an entity: its delay is over, or the caller's transaction has committed."""
        try:
            await self._emit_to_entity(payload)
        except (RunError, PayloadError, BadArgument, UnreadableRecord) as problem:
            raise Permanent(f"cannot emit to an entity: {problem}") from problem

    async def start(self, payload: dict[str, Any]) -> None:
        """Start a run after the attempt that started it has committed. A worker without the flow tries again later."""
        start = _read(START, payload, lambda: msgspec.convert(payload, RunStart))
        try:
            await self._children.start(start)
        except (RunError, UnreadableRecord) as problem:  # its id belongs to another run
            raise Permanent(f"cannot start run {start.run!r} of flow {start.flow!r}: {problem}") from problem

    async def start_many(self, payload: dict[str, Any]) -> None:
        """Start a page of the children of a call."""
        await self._children.start_many(_read(START_MANY, payload, lambda: msgspec.convert(payload, ManyStarts)))

    async def end_child(self, payload: dict[str, Any], ctx: Context) -> None:
        """Resolve the call that waits for a run that has ended."""
        end = _read(CHILD_ENDED, payload, lambda: msgspec.convert(payload, ChildEnd))
        if resolving := await self._children.resolve(end):
            self._resolutions[ctx.job_id, ctx.attempt] = resolving

    async def cancel_call(self, payload: dict[str, Any]) -> None:
        """Cancel the children of a call that was cancelled."""
        await self._children.cancel_call(_read(CANCEL_RUN, payload, lambda: msgspec.convert(payload, CallCancellation)))

    async def follow_parent(self, payload: dict[str, Any]) -> None:
        """Cancel, pause or resume the children of a run that was."""
        await self._children.follow(_read(FOLLOW_PARENT, payload, lambda: msgspec.convert(payload, ParentChange)))

    async def send_alert(self, payload: dict[str, Any]) -> None:
        """Send an alert to the webhook of the operators."""
        await self._send_alert({"text": _read(ALERT, payload, lambda: str(payload["text"]))})

    async def cancel_children(self, payload: dict[str, Any]) -> None:
        """Cancel the children of a job that was cancelled."""
        found = _read(CANCEL_CHILDREN, payload, lambda: msgspec.convert(payload, JobCancellation))
        await self._jobs.cancel_children(found)

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
        return resolve_wait(row, body, result, self._bodies, self._unit_id(), "Event received", read_trace(event))

    async def _submit(self, unit: Unit) -> Receipt:
        """Commit a unit. It is refused if the wait was settled or the run has ended: then nothing is left to do."""
        return await self._committer.submit(CommitRequest(lambda _v, _r: unit, outlasts_outage=True))


class DeliveryWork(InternalJobWork):
    """One claim of a delivery. The commit that completes it also resolves the waits it found.

    If one of them was settled meanwhile, the commit is refused; the job is released and looks again.
    """

    def __init__(
        self,
        runtime: Runtime,
        claim: Claim,
        handler: Handler,
        options: JobOptions,
        resolutions: Resolutions,
    ) -> None:
        super().__init__(runtime, claim, handler, options)
        self._resolutions = resolutions

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


def default_run_id(row: WaitRow, stream: str, id: str) -> str:
    """Return the id of the run an event starts, if the flow declares no key. It is the same for every delivery and
    every `start_on` of a flow."""
    return f"{row.scope}-{digest(f'{row.scope} {stream} {id}'.encode())}"


def _once_key(row: WaitRow, stream: str, id: str) -> str:
    """Return the key that lets a step with several waits for one kind receive each event once."""
    return f"{row.scope}/{event_ref(stream, id)}"


def _read(name: str, payload: Any, read: Callable[[], T]) -> T:
    """Read the input of an internal job. Another program may have written it: then no retry can help."""
    try:
        return read()
    except (AttributeError, LookupError, *DECODE_ERRORS) as problem:
        kind = type(payload).__name__
        raise Permanent(
            f"{name!r} is an internal job that only Penstock enqueues; its input, a {kind}, is invalid: {problem!r}"
        ) from None


class _Delivery(msgspec.Struct):
    stream: str
    id: str
    cursor: Annotated[str, msgspec.Meta(pattern=r"^\d{1,19}([.-]\d{1,19})?$")]
    body: dict[str, Any]


def _read_delivery(payload: Any) -> tuple[list[DeliveredEvent], list[str]]:
    """Return the events of a delivery, and what is wrong with those that cannot be read."""
    items = payload["events"] if isinstance(payload, dict) and "events" in payload else [payload]
    delivered: list[DeliveredEvent] = []
    problems: list[str] = []
    for item in items if isinstance(items, list) else [items]:
        try:
            one = msgspec.convert(item, _Delivery)
            event_seq(one.id)
            delivered.append(DeliveredEvent(one.stream, one.cursor, build_event(one.stream, one.id, one.body)))
        except (*DECODE_ERRORS, BadId) as problem:
            problems.append(str(problem))
    return delivered, problems
