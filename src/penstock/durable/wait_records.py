"""Waits as the store holds them, and how they end: resolved from outside, or expired by their own step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ..core.clock import to_iso
from ..core.durations import format_ms
from ..core.errors import AwaitTimeout, WaitCancelled
from ..core.events import EventBodies, EventBody
from ..core.ids import digest
from ..core.payload import DECODE_ERRORS
from ..core.stored import read_stored
from ..core.trace_context import current_trace, is_traceparent
from ..ports.store import WaitRow
from ..ports.unit import FLOW, Memo, NewEvent, NewJob, NewWait, SettleWait, Unit, WaitChange
from .call_recorder import CallSession
from .journal import REPLAY_HINT, RESULT, encode

TIME, EVENT, TRIGGER, CALL = "time", "event", "trigger", "call"
RESOLVED_MANUALLY = "Resolved manually"
RUN_ID_TIME_CHARS = 13  # the characters of a UUIDv7 that hold its time


class WaitBody(msgspec.Struct, omit_defaults=True, rename="camel"):
    """What a wait stores for those who resolve it."""

    key: str  # the durable call it belongs to
    at: int  # when it started
    step: str | None = None
    n: int = 1
    correlation_id: str | None = None
    match: Any = None
    taken: list[str] = []  # the events this step has received, `stream@id`
    shared: bool = False  # the step has other pending waits for this kind: one event resolves one of them
    name: str | None = None
    type: str | None = None
    tokens: list[str] = []  # hashes
    schema: Any = None
    signed: str | None = None
    signed_id: str = "trigger"
    payload: Any = None  # what to show to the person who answers a trigger
    children: str | None = None  # of a call: the child run, or the start of the ids of many
    many: int | None = None  # how many child runs
    pages: int = 0  # how many jobs start them
    abandon: bool = False  # the children go on if the call times out
    kind: str = FLOW  # of the run
    trace: str | None = None  # the `traceparent` of the attempt that waits


class Manual(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who settled a wait by hand, and why."""

    by: str | None = None
    reason: str | None = None


class CallOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a call came from: `http`, `cli`, `app` or another source, and the address of the caller."""

    source: str = "app"
    ip: str | None = None


class WaitResult(msgspec.Struct, omit_defaults=True):
    """How a wait ended."""

    at: int
    value: msgspec.Raw = msgspec.Raw(b"null")
    timeout: bool = False
    ref: str | None = None  # the event that resolved it
    cancelled: bool = False
    manual: Manual | None = None
    caller: CallOrigin | None = None  # of a trigger
    traces: list[str] = []  # the `traceparent` of what resolved it, and of the attempt that waited


decode_body = msgspec.json.Decoder(WaitBody).decode
_decode_result = msgspec.json.Decoder(WaitResult).decode


def read_body(row: WaitRow) -> WaitBody:
    """Decode the body of a wait. Raise UnreadableRecord if it is damaged."""
    what, hint = f"wait {row.id!r} of run {row.run!r}", f"cancel the run: `penstock runs cancel {row.run}`"
    return read_stored(decode_body, row.body, what, hint)


def decode_result(data: bytes) -> WaitResult:
    """Decode how a wait ended. Raise UnreadableRecord if it is damaged."""
    return read_stored(_decode_result, data, "the recorded result of a wait", REPLAY_HINT)


class WaitSession(CallSession, Protocol):
    """The attempt, as waits see it."""

    @property
    def now_ms(self) -> int:
        """The time, never earlier than the claim."""
        ...

    @property
    def run(self) -> str: ...

    @property
    def job(self) -> str: ...

    def new_wait_body(self, key: str) -> WaitBody:
        """Build a wait's body with what the attempt knows."""
        ...

    def add_step_event(self, kind: str, data: dict[str, Any], **meta: Any) -> None:
        """Append an event of the step with the next commit."""
        ...

    def add_trigger_event(self, kind: str, id: str, data: dict[str, Any]) -> None:
        """Append an event to a trigger's own stream with the next commit."""
        ...

    async def expire(self, changes: Sequence[WaitChange]) -> None:
        """Commit the journal's writes together with a wait that expires. Restart the attempt if the wait was resolved
        at the last moment."""
        ...

    def look_back_job(self, wait: str, since: str | None = None) -> NewJob:
        """Build a job that checks whether the event came before the wait: since the run started, or since another
        wait was registered."""
        ...

    def trigger_url(self, token: str) -> str:
        """Return the URL that fires a trigger."""
        ...


def find_resolvers(memos: Mapping[str, bytes]) -> list[str]:
    """Return the traces of what woke an attempt: those of the wait that was resolved last."""
    last: WaitResult | None = None
    for name, data in memos.items():
        if name.endswith(RESULT):
            try:
                result = _decode_result(data)
            except DECODE_ERRORS:
                continue  # the handler reports it
            if result.traces and (last is None or result.at >= last.at):
                last = result
    return [one for one in last.traces if is_traceparent(one)] if last is not None else []


def wait_id(kind: str, scope: str, key: str) -> str:
    """Return a wait's id: the same on every replay."""
    return f"{kind[0]}-{digest(f'{scope} {key}'.encode())}"


def sortable_wait_id(kind: str, scope: str, key: str) -> str:
    """Return a wait's id that sorts by the start of its run.

    Waits of runs that started together mostly resolve together; sorted next to each other, a store writes few
    pages."""
    return f"{kind[0]}-{scope[:RUN_ID_TIME_CHARS]}-{digest(f'{scope} {key}'.encode())}"


def event_ref(stream: str, id: str) -> str:
    """Return how a wait's records name an event."""
    return f"{stream}@{id}"


def resolve_wait(
    row: WaitRow,
    body: WaitBody,
    result: WaitResult,
    bodies: EventBodies,
    unit_id: str,
    reason: str,
    trace: str | None = None,
) -> Unit:
    """Build the unit that resolves a wait, records its result and wakes the waiting step.

    `trace` is the `traceparent` of what resolves it, if it is not what runs here."""
    data: dict[str, Any] = {"wait": body.key, "reason": reason, "awaitDuration": max(result.at - body.at, 0)}
    if result.manual is not None:
        data["manual"] = result.manual
    meta = {"awaitType": row.kind, **({"triggerId": row.id} if row.kind == TRIGGER else {})}
    result.traces = [one for one in dict.fromkeys((trace or current_trace.get(), body.trace)) if one is not None]
    resumed = build_step_event(bodies, "step.resumed", row.run, body, data, meta)
    return Unit(
        unit_id,
        waits=[SettleWait(row.id, "resolved")],
        memos=[Memo(row.scope, body.key + RESULT, encode(result))],
        events=[resumed],
        wakes=[row.job],
    )


def cancel_wait(row: WaitRow, body: WaitBody, manual: Manual, at: int, bodies: EventBodies, unit_id: str) -> Unit:
    """Build the unit that cancels a wait, records it and wakes the waiting step, which raises WaitCancelled."""
    result = WaitResult(at, cancelled=True, manual=manual)
    return Unit(
        unit_id,
        waits=[SettleWait(row.id, "cancelled", final=True)],
        memos=[Memo(row.scope, body.key + RESULT, encode(result))],
        events=build_cancelled_events(row, body, at, bodies, manual.reason, manual),
        wakes=[row.job],
    )


def build_cancelled_events(
    row: WaitRow, body: WaitBody, at: int, bodies: EventBodies, reason: str | None, manual: Manual | None = None
) -> list[NewEvent]:
    """Build the events of a wait that is cancelled by hand or with its run: for the run, and for a trigger's stream."""
    more: dict[str, Any] = {"reason": reason} if reason is not None else {}
    if manual is not None:
        more["manual"] = manual
    data = {"wait": body.key, "awaitType": row.kind, "duration": max(at - body.at, 0), **more}
    meta = {"triggerId": row.id} if row.kind == TRIGGER else {}
    kind = "step.await.cancelled"
    events = [build_step_event(bodies, kind, row.run, body, data, meta)]
    if row.kind == TRIGGER:
        events.append(build_trigger_event(bodies, "trigger.cancelled", row.id, row.run, body, more))
    return events


async def expire_wait(
    session: WaitSession, record_result: Callable[[WaitResult], None], wait: NewWait, started: int
) -> None:
    """Expire a wait. The commit comes before the handler continues, so that nothing can resolve the wait any more."""
    now, is_trigger = session.now_ms, wait.kind == TRIGGER
    record_result(WaitResult(now, timeout=True))
    data = {"wait": decode_body(wait.body).key, "awaitType": wait.kind, "duration": now - started}
    session.add_step_event("step.await.timeout", data, **({"triggerId": wait.id} if is_trigger else {}))
    if is_trigger:
        session.add_trigger_event("trigger.timeout", wait.id, {"duration": now - started})
    # Register it again first: it may never have been registered, or the run may have ended and been retried since,
    # which cancelled the wait. If something else has settled it, the store refuses the unit.
    await session.expire([wait, SettleWait(wait.id, "expired", lenient=True)])


def timeout_error(name: str, started: Mapping[str, Any] | None) -> AwaitTimeout:
    """Build the error of a wait that expired."""
    waited = started["due"] - started["at"] if started is not None else 0
    what = "was not fired" if name.startswith("the trigger ") else "did not arrive"
    return AwaitTimeout(f"{name} {what} within {format_ms(waited)}")


def read_end(result: WaitResult, name: str, started: Mapping[str, Any] | None) -> bytes:
    """Return the value that a wait ended with. Raise AwaitTimeout if it expired, WaitCancelled if it was cancelled."""
    if result.timeout:
        raise timeout_error(name, started)
    if result.cancelled:
        manual = result.manual or Manual()
        by = f" by {manual.by}" if manual.by else ""
        why = f": {manual.reason}" if manual.reason else ""
        raise WaitCancelled(f"the wait {name} was cancelled{by}{why}")
    return bytes(result.value)


def timeout_fields(timeout_ms: int | None, due: int | None) -> dict[str, Any]:
    """Return the fields `timeout` and `until` of a wait's event, if it has a timeout."""
    return {} if timeout_ms is None or due is None else {"timeout": timeout_ms, "until": to_iso(due)}


def build_step_event(
    bodies: EventBodies,
    kind: str,
    run: str,
    wait: WaitBody,
    data: dict[str, Any],
    meta: dict[str, Any],
) -> NewEvent:
    """Build an event of the waiting step for its run's stream."""
    if wait.n > 1:
        meta = {**meta, "n": wait.n}
    body = EventBody(kind, None, None, wait.step, None, wait.correlation_id, msgspec.Raw(encode(data)), meta)
    return NewEvent(bodies.run(wait.kind, run), bodies.encode(body))


def build_trigger_event(
    bodies: EventBodies, kind: str, id: str, run: str, wait: WaitBody, data: dict[str, Any]
) -> NewEvent:
    """Build an event for a trigger's own stream."""
    raw = msgspec.Raw(encode(data))
    body = EventBody(kind, None, run, wait.step, id, wait.correlation_id or run, raw)
    return NewEvent(bodies.stream_name("trigger", id), bodies.encode(body))
