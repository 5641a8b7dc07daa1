"""Converts replies of the scripts to rows of the port."""

from __future__ import annotations

from typing import Any

import msgspec

from ...core.events import Event, decode_event, unreadable_event
from ...ports.store import ChildRow, ChildState, FeedItem, JobRow, QueueRow, RunRow, ScheduleRow, StateRow, WaitRow
from ...ports.unit import FLOW, JobState
from ..run_search import RunStart
from .commit import NO_RESULT
from .job_options import unescape_id

COUNTED_STATES = tuple(state.value for state in JobState)  # in the order of read_jobs.lua


def job(reply: list[Any]) -> JobRow:
    id, queue, state, lease, flat, waits_for = reply
    fields = _fields(flat)
    name = unescape_id(id)
    result, run, scope = fields.get(b"returnvalue"), fields.get(b"nq:run"), fields.get(b"nq:scope")
    order_key = fields.get(b"nq:order_key")
    return JobRow(
        id=name,
        queue=queue.decode(),
        name=fields.get(b"name", b"").decode(),
        state=JobState(state.decode()),
        payload=fields.get(b"data", b""),
        opts=fields.get(b"nq:opts", b"{}"),
        priority=int(fields.get(b"nq:priority") or fields.get(b"priority") or 0),
        due=int(float(fields.get(b"nq:due") or 0)),
        attempt=int(fields.get(b"ats", 0)),
        failures=int(fields.get(b"nq:failures", 0)),
        crashes=int(fields.get(b"nq:crashes", 0)),
        run=run.decode() if run is not None else None,
        scope=scope.decode() if scope is not None else name,
        created=int(fields.get(b"timestamp", 0)),
        finished=_number(fields.get(b"finishedOn")),
        progress=fields.get(b"progress"),
        result=None if result == NO_RESULT else result,
        error=fields.get(b"nq:error") or fields.get(b"failedReason"),
        lease=_number(lease),
        parent=unescape_id(parent.rpartition(b":")[2]) if (parent := fields.get(b"parentKey")) else None,
        order_key=order_key.decode() if order_key is not None else None,
        waits_for=unescape_id(waits_for) if waits_for else None,
    )


def child(reply: list[Any]) -> ChildRow:
    key, state, *rest = reply
    _, queue, id = key.rsplit(b":", 2)
    row = ChildRow(key.decode(), queue.decode(), unescape_id(id), ChildState(state.decode()))
    if row.state is ChildState.PROCESSED:
        return msgspec.structs.replace(row, value=b"null" if rest[0] == NO_RESULT else rest[0])
    if row.state is ChildState.IGNORED:
        return msgspec.structs.replace(row, reason=rest[0].decode(errors="replace"))
    return row


def queue(reply: list[Any]) -> QueueRow:
    name, paused, *counts = reply
    return QueueRow(name.decode(), bool(paused), dict(zip(COUNTED_STATES, counts, strict=True)))


def run(reply: list[Any]) -> RunRow:
    id, version, flow, status, closed, created, updated, record, kind = reply
    return RunRow(
        id.decode(),
        int(version),
        flow.decode(),
        status.decode(),
        closed == b"1",
        int(created),
        int(updated),
        record,
        kind.decode() if kind is not None else FLOW,
    )


def run_with_first_event(reply: list[Any]) -> RunStart:
    """Return a run and the body of its first event."""
    *row, body = reply
    return run(row), body


def wait(reply: list[Any]) -> WaitRow:
    id, flat = reply
    fields = _fields(flat)
    topic, key = fields.get(b"topic"), fields.get(b"key")
    return WaitRow(
        id.decode(),
        fields[b"run"].decode(),
        fields[b"scope"].decode(),
        fields[b"kind"].decode(),
        fields[b"state"].decode(),
        fields[b"body"],
        _number(fields.get(b"due")),
        fields[b"job"].decode(),
        topic.decode() if topic is not None else None,
        key.decode() if key is not None else None,
    )


def state(reply: list[Any]) -> StateRow:
    key, value, version, expires = reply
    return StateRow(key.decode(), value, version, expires)


def schedule(reply: list[Any]) -> ScheduleRow:
    id, spec, target, next_, last, paused, fired = reply
    return ScheduleRow(id.decode(), spec, target, _number(next_), _number(last), paused == b"1", int(fired or 0))


def event(stream: str, id: bytes, body: bytes | None, fields: list[bytes] | None = None) -> Event:
    """Return an event, or the entry of another program as an event that cannot be read."""
    ms, _, seq = id.partition(b"-")
    if body is not None:
        return decode_event(stream, int(seq), int(ms), body)
    raw = b" ".join(fields or ())
    return unreadable_event(stream, int(seq), int(ms), raw, "another program added this entry to the stream")


def feed_item(reply: list[Any]) -> FeedItem:
    cursor, stream, *entry = reply
    name = stream.decode(errors="replace")
    return FeedItem(cursor.decode(), name, event(name, *entry))


def _fields(flat: list[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _number(value: bytes | None) -> int | None:
    return int(float(value)) if value else None
