"""Rows of the port from what scripts reply."""

from __future__ import annotations

from typing import Any

import msgspec

from ...core.events import decode_event
from ...ports.store import ChildRow, ChildState, FeedItem, JobRow, QueueRow, RunRow, ScheduleRow, StateRow, WaitRow
from ...ports.unit import JobState
from ..run_search import RunStart
from .commit import NOTHING
from .names import outside

COUNTED = tuple(state.value for state in JobState)  # in the order of read_jobs.lua


def job(reply: list[Any]) -> JobRow:
    id, queue, state, lease, flat = reply
    has = _fields(flat)
    name = outside(id)
    result, run, scope = has.get(b"returnvalue"), has.get(b"nq:r"), has.get(b"nq:s")
    return JobRow(
        id=name,
        queue=queue.decode(),
        name=has.get(b"name", b"").decode(),
        state=JobState(state.decode()),
        payload=has.get(b"data", b""),
        opts=has.get(b"nq:o", b"{}"),
        priority=int(has.get(b"nq:p") or has.get(b"priority") or 0),
        due=int(float(has.get(b"nq:d") or 0)),
        attempt=int(has.get(b"ats", 0)),
        failures=int(has.get(b"nq:f", 0)),
        crashes=int(has.get(b"nq:c", 0)),
        run=run.decode() if run is not None else None,
        scope=scope.decode() if scope is not None else name,
        created=int(has.get(b"timestamp", 0)),
        finished=_number(has.get(b"finishedOn")),
        progress=has.get(b"progress"),
        result=None if result == NOTHING else result,
        error=has.get(b"nq:e") or has.get(b"failedReason"),
        lease=_number(lease),
        parent=outside(parent.rpartition(b":")[2]) if (parent := has.get(b"parentKey")) else None,
    )


def child(reply: list[Any]) -> ChildRow:
    key, state, *rest = reply
    _, queue, id = key.rsplit(b":", 2)
    row = ChildRow(key.decode(), queue.decode(), outside(id), ChildState(state.decode()))
    if row.state is ChildState.PROCESSED:
        return msgspec.structs.replace(row, value=b"null" if rest[0] == NOTHING else rest[0])
    if row.state is ChildState.IGNORED:
        return msgspec.structs.replace(row, reason=rest[0].decode(errors="replace"))
    return row


def queue(reply: list[Any]) -> QueueRow:
    name, paused, *counts = reply
    return QueueRow(name.decode(), bool(paused), dict(zip(COUNTED, counts, strict=True)))


def run(reply: list[Any]) -> RunRow:
    id, version, flow, status, closed, created, updated, record = reply
    return RunRow(
        id.decode(), int(version), flow.decode(), status.decode(), closed == b"1", int(created), int(updated), record
    )


def begun(reply: list[Any]) -> RunStart:
    """A run with the body of its first event."""
    *row, body = reply
    return run(row), body


def wait(reply: list[Any]) -> WaitRow:
    id, flat = reply
    has = _fields(flat)
    topic, key = has.get(b"topic"), has.get(b"key")
    return WaitRow(
        id.decode(),
        has[b"run"].decode(),
        has[b"scope"].decode(),
        has[b"kind"].decode(),
        has[b"state"].decode(),
        has[b"body"],
        _number(has.get(b"due")),
        has[b"job"].decode(),
        topic.decode() if topic is not None else None,
        key.decode() if key is not None else None,
    )


def state(reply: list[Any]) -> StateRow:
    key, value, version, expires = reply
    return StateRow(key.decode(), value, version, expires)


def schedule(reply: list[Any]) -> ScheduleRow:
    id, spec, target, next_, last, paused, fired = reply
    return ScheduleRow(id.decode(), spec, target, _number(next_), _number(last), paused == b"1", int(fired or 0))


def feed_item(reply: list[Any]) -> FeedItem:
    cursor, stream, id, body = reply
    ms, _, seq = id.partition(b"-")
    name = stream.decode()
    return FeedItem(cursor.decode(), name, decode_event(name, int(seq), int(ms), body))


def _fields(flat: list[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _number(value: bytes | None) -> int | None:
    return int(float(value)) if value else None
