"""Decisions about an entity: from its record and a fact to its next record, events and the job that follows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..core.payload import NULL
from .record import EntityRecord, Mail

_NULL = msgspec.Raw(NULL)


class Emitted(msgspec.Struct, frozen=True):
    """An event to append: its kind without `entity.`, its data and its meta."""

    kind: str
    data: dict[str, Any]
    meta: dict[str, Any] = {}


class NextJob(msgspec.Struct, frozen=True):
    """The job of the next event. A spilled one is read from the state when it is claimed."""

    n: int
    event: str | None
    payload: msgspec.Raw = _NULL
    trace: str | None = None


class Decision(msgspec.Struct):
    """What follows from a fact."""

    record: EntityRecord
    events: list[Emitted] = []
    job: NextJob | None = None
    spilled: Mail | None = None  # an event to keep in the state
    unspilled: list[int] = []  # events that are no longer in the state


class Handled(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How user code took an event: what its attempt returns."""

    kind: str  # transitioned, kept or refused
    path: tuple[str, ...] = ()
    reason: str | None = None
    code: str | None = None
    has_data: bool = False
    data: msgspec.Raw = _NULL  # the entity's data afterwards, if it is in our store
    problems: tuple[str, ...] = ()  # errors of hooks that do not fail the event
    recovered: bool = False  # an earlier attempt had written it to the user's storage


def create(record: EntityRecord, data: bytes | None) -> Decision:
    """Create an entity without an event."""
    if data is not None:
        record.data = msgspec.Raw(data)
    return Decision(record, [_created(record)])


def _created(record: EntityRecord) -> Emitted:
    data: dict[str, Any] = {"type": record.type, "urn": record.urn, "status": record.status}
    return Emitted("created", data | ({"data": record.data} if bytes(record.data) != NULL else {}))


def on_emit(
    record: EntityRecord, event: str, payload: bytes, meta: dict[str, Any], *, is_new: bool, trace: str | None = None
) -> Decision:
    """Add an event to the mailbox. It gets a job at once if no other event has one."""
    record.received += 1
    n, raw = record.received, msgspec.Raw(payload)
    data: dict[str, Any] = {"event": event, **({"payload": raw} if payload != NULL else {})}
    decision = Decision(record, [_created(record)] if is_new else [])
    decision.events.append(Emitted("received", data, {"n": n, **meta}))
    if record.current is None:
        record.current = n
        decision.job = NextJob(n, event, raw, trace)
    elif record.has_room:
        record.mailbox.append(Mail(n, event, raw, trace))
    else:
        record.spilled += 1
        decision.spilled = Mail(n, event, raw, trace)
    return decision


def on_handled(
    record: EntityRecord,
    event: str,
    handled: Handled,
    finals: frozenset[str],
    meta: dict[str, Any],
    *,
    shows_data: bool,
) -> Decision:
    """Record how an event ended, and start the next one. `finals` closes the entity once its mailbox is empty."""
    before = record.status
    if handled.has_data:
        record.data = handled.data
    shown = {"data": handled.data} if handled.has_data and shows_data else {}
    problems = {"problems": list(handled.problems)} if handled.problems else {}
    if handled.kind == "transitioned":
        record.status = handled.path[-1]
        data: dict[str, Any] = {"event": event, "from": before, "to": record.status, **shown, **problems}
        if len(handled.path) > 2:
            data["path"] = list(handled.path)
        data |= {"reason": handled.reason} if handled.reason is not None else {}
        data |= {"recovered": True} if handled.recovered else {}
        ended = Emitted("transitioned", data, meta)
    elif handled.kind == "kept":
        ended = Emitted("kept", {"event": event, "status": before, **shown, **problems}, meta)
    else:
        data = {"event": event, "status": before, "reason": handled.reason, "code": handled.code}
        ended = Emitted("refused", data, meta)
    return _finish(record, ended, finals)


def on_dead(record: EntityRecord, data: dict[str, Any], finals: frozenset[str], meta: dict[str, Any]) -> Decision:
    """Record that an event failed for good. The entity stays as it is, and the next event starts."""
    return _finish(record, Emitted("failed", {**data, "status": record.status}, meta), finals)


def _finish(record: EntityRecord, ended: Emitted, finals: frozenset[str]) -> Decision:
    decision = Decision(record, [ended])
    record.handled += 1
    record.current = None
    if record.mailbox:
        mail = record.mailbox.pop(0)
        record.current, decision.job = mail.n, NextJob(mail.n, mail.event, mail.payload, mail.trace)
    elif record.spilled:
        record.current = record.first_spilled
        decision.job = NextJob(record.current, None)
    elif record.status in finals:
        record.closed = True
        decision.events.append(Emitted("closed", {"status": record.status}))
    return decision


def take_spilled(record: EntityRecord, own: int, loaded: Sequence[Mail]) -> list[int]:
    """Move events from the state to the mailbox: those that the job of event `own` has read, and itself. Return their
    numbers."""
    if not record.spilled or record.first_spilled != own:
        return []
    record.spilled -= 1
    moved = [own]
    for mail in loaded:
        if not record.spilled or mail.n != record.first_spilled:
            break
        record.spilled -= 1
        record.mailbox.append(mail)
        moved.append(mail.n)
    return moved
