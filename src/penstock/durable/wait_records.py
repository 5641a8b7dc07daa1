"""What is written of a wait: the gate's own words, and what becomes of it. Those who open and who close it share it."""

from __future__ import annotations

from typing import Any

import msgspec

from ..core.event_bodies import EventBodies
from ..core.events import Body
from ..core.ids import digest
from ..ports.store import WaitRow
from ..ports.unit import Memo, NewEvent, SettleWait, Unit
from .journal import RESULT, encode

TIME, EVENT, TRIGGER = "time", "event", "trigger"
TIME_OF_RUN = 13  # characters of a UUIDv7 that are its time


class WaitBody(msgspec.Struct, omit_defaults=True, rename="camel"):
    """What a gate says of itself."""

    key: str  # the durable call it belongs to
    at: int  # when it was opened
    step: str | None = None
    n: int = 1
    correlation_id: str | None = None
    match: Any = None
    taken: list[str] = []  # events this step has had, `stream@id`
    shared: bool = False  # the step stands before others of its kind of event, and an event is for one of them
    name: str | None = None
    type: str | None = None
    tokens: list[str] = []  # hashes
    schema: Any = None
    signed: str | None = None


class WaitResult(msgspec.Struct, omit_defaults=True):
    """What became of a gate."""

    at: int
    value: msgspec.Raw = msgspec.Raw(b"null")
    timeout: bool = False
    ref: str | None = None  # the event that opened it


decode_body = msgspec.json.Decoder(WaitBody).decode
decode_result = msgspec.json.Decoder(WaitResult).decode


def wait_id(kind: str, scope: str, key: str) -> str:
    """A gate's id: the same however often the handler comes to it."""
    return f"{kind[0]}-{digest(f'{scope} {key}'.encode())}"


def sortable_wait_id(kind: str, scope: str, key: str) -> str:
    """The same, but gates of runs that began together lie together: those who sleep together mostly wake together, and
    a store then writes few pages. It is recorded with what opened the gate; one that is not has the other id."""
    return f"{kind[0]}-{scope[:TIME_OF_RUN]}-{digest(f'{scope} {key}'.encode())}"


def recorded_wait_id(kind: str, scope: str, key: str, opened: dict[str, Any]) -> str:
    """The id of a gate of which it is recorded how it was opened."""
    return opened.get("id") or wait_id(kind, scope, key)


def event_ref(stream: str, id: str) -> str:
    return f"{stream}@{id}"


def resolve_wait(
    row: WaitRow, body: WaitBody, result: WaitResult, recorder: EventBodies, unit_id: str, reason: str
) -> Unit:
    """The unit that opens a gate from outside: its result, `step.resumed`, and the step that waits is woken."""
    said = {"wait": body.key, "reason": reason, "awaitDuration": max(result.at - body.at, 0)}
    meta = {"awaitType": row.kind, **({"triggerId": row.id} if row.kind == TRIGGER else {})}
    resumed = step_event(recorder, "step.resumed", row.run, body.step, body.n, body.correlation_id, said, meta)
    return Unit(
        unit_id,
        waits=[SettleWait(row.id, "resolved")],
        memos=[Memo(row.scope, body.key + RESULT, encode(result))],
        events=[resumed],
        wakes=[row.job],
    )


def step_event(
    recorder: EventBodies,
    kind: str,
    run: str,
    step: str | None,
    n: int,
    correlation_id: str | None,
    data: dict[str, Any],
    meta: dict[str, Any],
) -> NewEvent:
    """An event of the step that waits, on its run's stream."""
    if n > 1:
        meta = {**meta, "n": n}
    said = Body(kind, None, None, step, None, correlation_id, msgspec.Raw(encode(data)), meta)
    return NewEvent(recorder.flow(run), recorder.encode(said))


def trigger_event(
    recorder: EventBodies, kind: str, id: str, run: str, body: WaitBody, data: dict[str, Any]
) -> NewEvent:
    """An event of a trigger, on its own stream."""
    raw = msgspec.Raw(encode(data))
    said = Body(kind, None, run, body.step, id, body.correlation_id or run, raw)
    return NewEvent(recorder.named("trigger", id), recorder.encode(said))
