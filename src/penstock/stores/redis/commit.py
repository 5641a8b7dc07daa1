"""Encodes units as script arguments, and decodes the reply as receipts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...ports.store import PublishedSchedule, ScheduleRow
from ...ports.unit import (
    FLOW,
    Cancelled,
    Committed,
    Completed,
    Conflict,
    Dead,
    Fenced,
    KeepJobs,
    NewEvent,
    NewJob,
    NewWait,
    Outcome,
    Parent,
    Receipt,
    Refused,
    Released,
    RetryAt,
    Suspended,
    Unit,
    WaitChange,
    gives_attempt_back,
    needs_receipt,
)
from ..child_results import error_text
from .job_options import bullmq_options, escape_id, unescape_id
from .resp import HEAD, Part

# "No result", as JSON that no encoder writes: other programs read it as null.
NO_RESULT = b" null"
MAX_UNITS_PER_CALL = 64
_FLAG = ("0", "1")


class _Error(msgspec.Struct):
    error: str = ""
    name: str = ""
    message: str = ""
    stack: str | None = None


_error = msgspec.json.Decoder(_Error).decode


def encode(unit: Unit) -> list[Part]:
    """Return the arguments that read_units.lua reads: the id, whether to record it, and each part after its letter.

    The end of most attempts is a single part, which the fast path takes (lua/fast).
    """
    claim, run = unit.claim, unit.run
    out = _fast_end(unit)
    add = out.extend
    if not out:
        add(("U", unit.id, _FLAG[needs_receipt(unit)]))
        if claim is not None:
            add(("C", claim.queue, escape_id(claim.job), claim.attempt, claim.token, claim.run or ""))
            if unit.outcome is not None:
                add(_outcome(unit.outcome))
            if unit.order_key is not None:
                add(("c", unit.order_key))
        if run is not None:
            add(("R", run.id, run.expect, run.record, run.flow, run.status))
            if run.closed or run.paused or run.cancel_jobs or run.after is not None:
                add(("V", _FLAG[run.closed], _FLAG[run.paused], _FLAG[run.cancel_jobs], run.after or ""))
            if run.kind != FLOW:
                add(("I", run.kind))
            for key in run.keys:
                add(("i", key))
            if (up := run.parent) is not None:
                add(("p", up.run, up.root, up.depth, up.call or ""))
    for status in unit.statuses:
        add(("n", status.queue, escape_id(status.job), status.data))
    if unit.progress is not None:
        add(("P", unit.progress))
    for line in unit.logs:
        add(("L", line))
    for event in unit.events:
        add(_event(event))
    for job in unit.jobs:
        _encode_job(job, add)
    for memo in unit.memos:
        add(("M", memo.scope, memo.name, memo.value))
    if unit.waits or unit.state or unit.removes or unit.wakes or unit.schedule is not None or unit.once_key is not None:
        _encode_rest(unit, out)
    for cancel in unit.cancels:
        attempt = "" if cancel.attempt is None else cancel.attempt
        add(("x", escape_id(cancel.id), cancel.error, error_text(cancel.error), attempt))
    return out


def _event(event: NewEvent) -> tuple[Part, ...]:
    if not event.kind:
        return "E", event.stream, event.body
    if event.original is None:
        return "H", event.stream, event.body, event.kind
    return "h", event.stream, event.body, event.kind, event.original


def _fast_end(unit: Unit) -> list[Part]:
    """Return a completed attempt, with the run it changes, as one part; nothing if the unit needs more."""
    claim, run, outcome = unit.claim, unit.run, unit.outcome
    if claim is None or not isinstance(outcome, Completed) or outcome.keep is not None or unit.order_key is not None:
        return []
    value = NO_RESULT if outcome.result is None else outcome.result
    end: list[Part] = ["Y", unit.id, claim.queue, escape_id(claim.job), claim.attempt, claim.token, value]
    if run is None:
        return end if claim.run is None and not unit.jobs else []
    if run.paused or run.cancel_jobs or run.after is not None or run.keys or needs_receipt(unit):
        return []
    if run.closed and run.parent is not None:
        return []
    end[0] = "Z"
    end += (run.id, run.expect, run.record, run.flow, run.status, _FLAG[run.closed])
    return end


def _encode_rest(unit: Unit, out: list[Part]) -> None:
    add = out.extend
    for wait in unit.waits:
        add(_wait(wait))
    for write in unit.state:
        add(("S", write.key, b"" if write.value is None else write.value, _FLAG[write.value is not None]))
        add(("" if write.expect is None else write.expect, "" if write.expires is None else write.expires))
    for job in unit.wakes:
        add(("K", escape_id(job)))
    for job in unit.removes:
        add(("T", escape_id(job)))
    move = unit.schedule
    if move is not None:
        add(("D", move.id, move.slot, "" if move.next is None else move.next))
    if unit.once_key is not None:
        add(("N", unit.once_key))


def encode_put(row: ScheduleRow, was: ScheduleRow | None, published: PublishedSchedule | None = None) -> list[Part]:
    """Return a schedule to write and the row it must replace, as a part of a unit."""
    replaced = ("", *[""] * 6) if was is None else ("1", *_schedule(was))
    return ["Q", row.id, *_schedule(row), *replaced, *_published(published)]


def _published(schedule: PublishedSchedule | None) -> tuple[Part, ...]:
    if schedule is None:
        return ("",) * 9
    times = (schedule.cron, schedule.every_ms, schedule.tz, schedule.start_ms, schedule.end_ms, schedule.limit)
    return (schedule.queue, schedule.name, *("" if one is None else one for one in times), schedule.data)


def _schedule(row: ScheduleRow) -> tuple[Part, ...]:
    next_, last = ("" if value is None else value for value in (row.next, row.last))
    return row.spec, row.target, next_, last, _FLAG[row.paused], row.fired


def _outcome(outcome: Outcome) -> tuple[Part, ...]:
    """Return kind, due time, the text for BullMQ's tools, error, count and age of jobs to keep, stack trace, and
    whether the attempt gives its number back."""
    back = _FLAG[gives_attempt_back(outcome)]
    match outcome:
        case Completed(result=result, keep=None):
            return "G", NO_RESULT if result is None else result
        case Completed(result=result, keep=keep):
            return "O", "completed", "", NO_RESULT if result is None else result, "", *_keep(keep), "", ""
        case RetryAt(due=due, error=error):
            reason, stack = _reason_and_stack(error)
            return "O", "retry", due, reason, error, "", "", stack, ""
        case Dead(error=error, keep=keep):
            reason, stack = _reason_and_stack(error)
            return "O", "dead", "", reason, error, *_keep(keep), stack, back
        case Suspended(due=due):
            return "O", "suspended", "" if due is None else due, "", "", "", "", "", back
        case Cancelled(reason=reason):
            return "O", "cancelled", "", reason, "", "", "", "", ""
        case Released(due=due, hold_until=hold):
            return "O", "released", due, "" if hold is None else hold, "", "", "", "", back


def _keep(keep: KeepJobs | None) -> tuple[Part, Part]:
    if keep is None:
        return "", ""
    return "" if keep.count is None else keep.count, "" if keep.age_ms is None else keep.age_ms


def _reason_and_stack(error: bytes) -> tuple[Part, Part]:
    """Return the message and the stack trace as BullMQ stores them."""
    try:
        found = _error(error)
    except msgspec.MsgspecError:
        return error, ""
    return found.error or found.message or error, found.stack or ""


def _encode_job(job: NewJob, add: Callable[[tuple[Part, ...]], None]) -> None:
    """Add the job, then the parts that few jobs have."""
    started, added, id, scope = job.started, job.added, escape_id(job.id), job.scope
    if scope is None and id != job.id:
        scope = job.id
    start = (started.stream, started.body_prefix) if started is not None else ("", "")
    add(("J", id, job.queue, job.name, job.payload, job.run or "", job.opts, *start, bullmq_options(job)))
    if job.priority or job.due or scope or job.rate_key or job.dedupe is not None:
        add(("B", job.priority, job.due, scope or "", job.rate_key or "", _FLAG[job.dedupe is not None]))
    if added is not None:
        add(("A", added.stream, added.body, added.kind or ""))
    if job.order_key is not None:
        add(("o", job.order_key))
    if job.error_group is not None:
        add(("g", job.error_group))
    if job.waits_for_children or job.parent is not None:
        add(("F", _FLAG[job.waits_for_children], *_parent(job.parent)))


def _parent(parent: Parent | None) -> tuple[Part, ...]:
    if parent is None:
        return "", "", "", ""
    return (
        escape_id(parent.id),
        parent.queue,
        parent.on_failure.value,
        escape_id(parent.replaces) if parent.replaces else "",
    )


def _wait(wait: WaitChange) -> tuple[Part, ...]:
    if isinstance(wait, NewWait):
        due = "" if wait.due is None else wait.due
        key = wait.key or ""
        return "W", wait.id, wait.run, wait.scope, wait.kind, wait.body, due, wait.job, wait.topic or "", key
    return "X", wait.id, wait.state, _FLAG[wait.lenient], _FLAG[wait.final]


def receipts(reply: list[Any]) -> list[Receipt]:
    """Return the receipts of a reply."""
    found: list[Receipt] = []
    at, last = HEAD, HEAD + reply[1]
    while at < last:
        kind = reply[at]
        if kind == 1 and reply[at + 1] == 2 and not reply[at + 4]:  # one event and no job, as most units have
            found.append(Committed([(reply[at + 2], reply[at + 3])]))
            at += 5
        elif kind == 1:
            added = at + 2 + reply[at + 1]
            end = added + 1 + reply[added]
            found.append(_committed(reply[at + 2 : added], reply[added + 1 : end]))
            at = end
        elif kind in (2, 3):
            found.append(Committed(repeated=True) if kind == 2 else Fenced())
            at += 1
        else:
            one, other = reply[at + 1 : at + 3]
            found.append(Conflict(one, other) if kind == 4 else _refused(one.decode(), other))
            at += 3
    return found


def _committed(ids: list[int], added: list[Any]) -> Committed:
    events = list(zip(ids[::2], ids[1::2], strict=True))
    duplicates = {n: unescape_id(new) for n, new in enumerate(added) if isinstance(new, bytes)}
    return Committed(events, [new == 1 for new in added], duplicates)


def _refused(why: str, key: bytes) -> Refused:
    return Refused(why, unescape_id(key) if why in ("taken", "job", "children") else key.decode(errors="replace"))


def batches(units: Sequence[Unit]) -> list[list[Part]]:
    """Return the arguments of each script call. More units per call save setup time; fewer block the server shorter."""
    return [
        [part for unit in units[start : start + MAX_UNITS_PER_CALL] for part in encode(unit)]
        for start in range(0, len(units), MAX_UNITS_PER_CALL)
    ]


def topics(replies: Sequence[Any]) -> set[str]:
    """Return the topics that the commits changed."""
    return {topic for reply in replies if reply[0] for topic in reply[0].decode(errors="replace").split("\n")}
