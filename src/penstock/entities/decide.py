"""Decisions about an entity: from its record and a fact to its next record, events and the job that follows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from ..core.payload import NULL
from .record import MAX_INLINE_BYTES, EntityRecord, Mail, TakenMail

_NULL = msgspec.Raw(NULL)
_NO_BATCHES: Mapping[str, int] = MappingProxyType({})


class Emitted(msgspec.Struct, frozen=True):
    """An event to append: its kind without `entity.`, its data and its meta."""

    kind: str
    data: dict[str, Any]
    meta: dict[str, Any] = {}


class NextJob(msgspec.Struct, frozen=True):
    """The job of the next event, or of the next few. A spilled one is read from the state when it is claimed."""

    n: int
    event: str | None
    payload: msgspec.Raw = _NULL
    trace: str | None = None
    count: int = 1


class Rules(msgspec.Struct, frozen=True):
    """What decisions need of a definition: its final states, and how many of an event may be handled together."""

    finals: frozenset[str] = frozenset()
    batches: Mapping[str, int] = _NO_BATCHES


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
    record: EntityRecord, mail: TakenMail, handled: Handled, rules: Rules, meta: dict[str, Any], *, shows_data: bool
) -> Decision:
    """Record how an event ended, or several that were handled together, and start the next one. A final state closes
    the entity once its mailbox is empty."""
    before, event = record.status, mail.event
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
    return _finish(record, [ended] if mail.count == 1 else _repeat(ended, mail), rules)


def _repeat(ended: Emitted, mail: TakenMail) -> list[Emitted]:
    """Return an end for each of the events that were handled together. The last one has the data."""
    meta = {**ended.meta, "batch": mail.count}
    brief = {name: value for name, value in ended.data.items() if name != "data"}
    earlier = [Emitted(ended.kind, brief, {**meta, "n": n}) for n in range(mail.first, mail.n)]
    return [*earlier, Emitted(ended.kind, ended.data, meta)]


def on_dead(record: EntityRecord, data: dict[str, Any], rules: Rules, meta: dict[str, Any]) -> Decision:
    """Record that an event failed for good. The entity stays as it is, and the next event starts."""
    return _finish(record, [Emitted("failed", {**data, "status": record.status}, meta)], rules)


def on_split(record: EntityRecord, mail: TakenMail, reason: str, meta: dict[str, Any]) -> Decision:
    """Handle events one by one that failed together: the entity stays as it is, and the first of them starts."""
    payloads: list[msgspec.Raw] = msgspec.json.decode(mail.payload, type=list[msgspec.Raw])
    singles = [Mail(n, mail.event, payload, mail.trace) for n, payload in enumerate(payloads, mail.first)]
    record.mailbox[:0] = singles[1:]
    record.single_until = mail.n
    decision = Decision(record, [Emitted("returned", {"reason": reason}, {**meta, "batch": mail.count})])
    _start(decision, take(singles[0]))
    return decision


def _finish(record: EntityRecord, ended: list[Emitted], rules: Rules) -> Decision:
    decision = Decision(record, ended)
    record.handled += len(ended)
    record.current = None
    if record.mailbox:
        _start(decision, _take_next(record, rules))
    elif record.spilled:
        record.current = record.first_spilled
        decision.job = NextJob(record.current, None)
    elif record.status in rules.finals:
        record.closed = True
        decision.events.append(Emitted("closed", {"status": record.status}))
    return decision


def take(mail: Mail) -> TakenMail:
    """Return an event that is handled by itself."""
    return TakenMail(mail.n, mail.event, mail.payload, mail.trace)


def _take_next(record: EntityRecord, rules: Rules) -> TakenMail:
    """Take the next event from the mailbox, with those behind it that may be handled together with it."""
    first, box = record.mailbox[0], record.mailbox
    size, count, room = rules.batches.get(first.event, 1), 1, MAX_INLINE_BYTES - len(bytes(first.payload))
    while count < min(size, len(box)) and box[count].event == first.event and first.n > record.single_until:
        room -= len(bytes(box[count].payload))
        if room < 0:
            break
        count += 1
    taken, record.mailbox = box[:count], box[count:]
    if count == 1:
        return take(first)
    payload = msgspec.Raw(msgspec.json.encode([mail.payload for mail in taken]))
    return TakenMail(taken[-1].n, first.event, payload, first.trace, count)


def _start(decision: Decision, mail: TakenMail) -> None:
    decision.record.current = mail.n
    decision.job = NextJob(mail.n, mail.event, mail.payload, mail.trace, mail.count)


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
