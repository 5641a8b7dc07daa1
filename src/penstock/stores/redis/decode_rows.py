"""Converts replies of the scripts to rows of the port."""

from __future__ import annotations

from typing import Any

import msgspec

from ...core.events import Event, decode_event, unreadable_event
from ...ports.monitoring import ErrorGroupRow, KeyRow, MinuteCounts, WorkerRow
from ...ports.store import (
    ChildRow,
    ChildState,
    FeedItem,
    ForeignSchedule,
    JobRow,
    QueueRow,
    RunRow,
    ScheduleRow,
    StateRow,
    WaitRow,
)
from ...ports.unit import FLOW, JobState
from ..run_search import RunStart
from .claim import NO_DATA
from .commit import NO_RESULT
from .job_options import unescape_id

MAX_NUMBER = 2.0**63
FOREIGN_ENTRY = b"another program added this entry to the stream"
COUNTED_STATES = tuple(state.value for state in JobState)  # in the order of read_jobs.lua


def job(reply: list[Any]) -> JobRow:
    id, queue, state, lease, flat, waits_for = reply
    fields = _fields(flat)
    name = unescape_id(id)
    result, parent = fields.get(b"returnvalue"), fields.get(b"parentKey")
    return JobRow(
        id=name,
        queue=queue.decode(),
        name=_text(fields.get(b"name")) or "",
        state=JobState(state.decode()),
        payload=fields.get(b"data") or NO_DATA,
        opts=fields.get(b"nq:opts", b"{}"),
        priority=_number(fields.get(b"nq:priority") or fields.get(b"priority")) or 0,
        due=_number(fields.get(b"nq:due")) or 0,
        attempt=_number(fields.get(b"ats")) or 0,
        failures=_number(fields.get(b"nq:failures")) or 0,
        crashes=_number(fields.get(b"nq:crashes")) or 0,
        run=_text(fields.get(b"nq:run")),
        scope=_text(fields.get(b"nq:scope")) or name,
        created=_number(fields.get(b"timestamp")) or 0,
        finished=_number(fields.get(b"finishedOn")),
        progress=fields.get(b"progress"),
        result=None if result == NO_RESULT else result,
        error=fields.get(b"nq:error") or fields.get(b"failedReason"),
        lease=_number(lease),
        parent=unescape_id(parent.rpartition(b":")[2]) if parent else None,
        order_key=_text(fields.get(b"nq:order_key")),
        waits_for=unescape_id(waits_for) if waits_for else None,
    )


def child(reply: list[Any]) -> ChildRow:
    key, state, *rest = reply
    _, queue, id = (b":", b":", *key.split(b":"))[-3:]  # another program may have written any key
    row = ChildRow(_text(key) or "", _text(queue) or "", unescape_id(id), ChildState(state.decode()))
    if row.state is ChildState.PROCESSED:
        return msgspec.structs.replace(row, value=b"null" if rest[0] == NO_RESULT else rest[0])
    if row.state is ChildState.IGNORED:
        return msgspec.structs.replace(row, reason=rest[0].decode(errors="replace"))
    return row


def set_aside(reply: list[Any], prefix: str) -> str:
    """Return what to do about a job that was set aside."""
    name, id, kind = (_text(value) or "" for value in reply)
    return (
        f"job {unescape_id(reply[1])!r} of queue {name!r} was set aside, because its key {prefix}:{name}:{id} must be "
        f"a hash, got {kind}; delete the key and `penstock jobs remove` the job"
    )


def key_set_aside(reply: list[Any]) -> str:
    """Return what to do about a key of ours that another program wrote."""
    key, kind, moved = (_text(value) or "" for value in reply)
    return (
        f"another program wrote the key {key} as a {kind}, so it was moved to {moved}; stop that program, and delete "
        "the key when you no longer need it"
    )


def queue(reply: list[Any]) -> QueueRow:
    name, paused, *counts, oldest = reply
    return QueueRow(_text(name) or "", bool(paused), dict(zip(COUNTED_STATES, counts, strict=True)), oldest)


def worker(reply: list[Any]) -> WorkerRow:
    id, report, expires = reply
    seen, _, facts = report.partition(b"\n")
    return WorkerRow(_text(id) or "", facts, _number(seen) or 0, _number(expires) or 0)


def minute_counts(reply: list[Any]) -> MinuteCounts:
    queue, minute, text = reply
    added, completed, failed, retried = (*map(int, text.split()), 0, 0, 0, 0)[:4]
    return MinuteCounts(_text(queue) or "", int(minute), added, completed, failed, retried)


def key_count(reply: list[Any]) -> KeyRow:
    key, state, count = reply
    return KeyRow(_text(key) or "", state.decode(), count)


def error_group(reply: list[Any]) -> ErrorGroupRow:
    group, count, first, last, sample = reply
    return ErrorGroupRow(_text(group) or "", count, first, last, unescape_id(sample))


def run(reply: list[Any]) -> RunRow:
    id, version, flow, status, closed, created, updated, record, kind, parent, root, depth, call = reply
    return RunRow(
        id.decode(),
        _number(version) or 0,
        _text(flow) or "",
        _text(status) or "",
        closed == b"1",
        _number(created) or 0,
        _number(updated) or 0,
        record or b"",
        kind.decode() if kind is not None else FLOW,
        _text(parent),
        _text(root),
        _number(depth) or 0,
        _text(call),
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
        _text(fields.get(b"run")) or "",
        _text(fields.get(b"scope")) or "",
        _text(fields.get(b"kind")) or "event",
        _text(fields.get(b"state")) or "pending",
        fields.get(b"body", b""),
        _number(fields.get(b"due")),
        _text(fields.get(b"job")) or "",
        topic.decode() if topic is not None else None,
        key.decode() if key is not None else None,
        _number(fields.get(b"created")) or 0,
        _number(fields.get(b"settled")),
        _text(fields.get(b"pos")) or "",
    )


def state(reply: list[Any]) -> StateRow:
    key, value, version, expires = reply
    return StateRow(key.decode(), value, version, expires)


def schedule(reply: list[Any]) -> ScheduleRow:
    id, spec, target, next_, last, paused, fired = reply
    return ScheduleRow(id.decode(), spec, target, _number(next_), _number(last), paused == b"1", _number(fired) or 0)


def foreign_schedule(reply: list[Any]) -> ForeignSchedule:
    queue, id, next_, name, cron, every, tz, limit, end, data, fired = reply
    return ForeignSchedule(
        queue.decode(),
        id.decode(errors="replace"),
        name.decode(errors="replace"),
        _number(next_.partition(b".")[0]),
        cron.decode(errors="replace") or None,
        _number(every) if every.isdigit() else None,
        tz.decode(errors="replace") or None,
        _number(limit) if limit.isdigit() else None,
        end.decode(errors="replace") or None,
        data or None,
        max((_number(fired) or 1) - 1, 0) if fired.isdigit() else 0,
    )


def event(
    stream: str, id: bytes, body: bytes | None, fields: list[bytes] | None = None, problem: bytes = FOREIGN_ENTRY
) -> Event:
    """Return an event, or what another program wrote as an event that cannot be read."""
    ms, _, seq = id.partition(b"-")
    if body is not None:
        return decode_event(stream, int(seq), int(ms), body)
    raw = b" ".join(fields or ())
    return unreadable_event(stream, int(seq), int(ms), raw, problem.decode())


def feed_item(reply: list[Any]) -> FeedItem:
    cursor, stream, *entry = reply
    name = stream.decode(errors="replace")
    return FeedItem(cursor.decode(), name, event(name, *entry))


def _fields(flat: list[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _number(value: bytes | None) -> int | None:
    """Return a number that any program may have written; None if it is none, or beyond what 64 bits hold."""
    try:
        found = float(value) if value else None
    except ValueError:
        return None
    return int(found) if found is not None and abs(found) < MAX_NUMBER else None


def _text(value: bytes | None) -> str | None:
    """Return a text that any program may have written."""
    return value.decode(errors="replace") if value is not None else None
