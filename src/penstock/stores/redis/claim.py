"""Encodes claim requests as script arguments, and decodes the reply as claims."""

from __future__ import annotations

from typing import Any

from ...core.ids import new_token
from ...ports.unit import FLOW, Claim, ClaimBatch, ClaimFilter, ClaimRequest, QueueDemand
from .bullmq_schedulers import ScheduledJob
from .job_options import escape_id, unescape_id
from .queue_problems import ProblemKind, QueueProblem
from .resp import HEAD, Part

FIXED_VALUES = 16  # values that every claim has
NO_NAME = "the job has no field `name`"
NO_DATA = b"{}"  # the input of a job without data, as BullMQ reads it


def encode(request: ClaimRequest | None) -> list[Part]:
    """Return the arguments that claim_args.lua describes."""
    if request is None:
        return [0]
    out: list[Part] = [
        len(request.queues),
        request.lease_ms,
        request.worker,
        new_token(),
        "" if request.limit is None else request.limit,
        _only(request.only),
    ]
    for demand in request.queues:
        out += _demand(demand)
    return out


def _only(only: ClaimFilter | None) -> str | bytes:
    """Return the jobs that may be claimed: a line for each run and each job, "" for any, "-" for none."""
    if only is None:
        return ""
    lines = [*(b"r:" + run.encode() for run in only.runs), *(b"j:" + _to_bytes(escape_id(job)) for job in only.jobs)]
    return b"\n".join(lines) or "-"


def _to_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _demand(demand: QueueDemand) -> tuple[Part, ...]:
    rate = demand.rate
    limits: tuple[Part, ...] = ("", "", "0")
    if rate is not None:
        limits = (rate.max, rate.duration_ms, "1" if rate.per_key else "0")
    return demand.queue, demand.limit, *limits, "" if demand.max_active is None else demand.max_active


def claims(reply: Any) -> ClaimBatch:
    """Return the claimed jobs and when to claim again."""
    now, due = reply[2:4]
    return ClaimBatch([_claim(row, now) for row in _rows(reply)], due, _drained_queues(reply))


def scheduled_jobs(reply: Any) -> list[ScheduledJob]:
    """Return the claimed jobs that a job scheduler of another program created."""
    rows = [row for row in _rows(reply) if row[13] is not None]
    return [ScheduledJob(row[1].decode(), row[0], row[13], row[14] or b"") for row in rows]


def problems(reply: Any) -> list[QueueProblem]:
    """Return what the script could not read of its queues."""
    parts = reply[6].decode(errors="replace").split("\0") if reply[6] else []
    return [QueueProblem(parts[n], ProblemKind(parts[n + 1]), parts[n + 2]) for n in range(0, len(parts), 3)]


def topics(reply: Any) -> set[str]:
    """Return the topics that the claim changed."""
    return set(reply[4].decode(errors="replace").split("\n")) if reply[4] else set()


def drained(reply: Any) -> set[str]:
    """Return the topics of queues without a due job."""
    return {f"queue:{queue}" for queue in _drained_queues(reply)}


def _drained_queues(reply: Any) -> list[str]:
    return reply[5].decode().split("\n") if reply[5] else []


def _rows(reply: list[Any]) -> list[list[Any]]:
    """Split the reply into claims: the fixed values, the number of memo values, and the memos."""
    rows, at = [], HEAD + reply[1]
    while at < len(reply):
        end = at + FIXED_VALUES + 1 + reply[at + FIXED_VALUES]
        rows.append(reply[at:end])
        at = end
    return rows


def _claim(row: list[Any], now: int) -> Claim:
    id, queue, name, payload, opts, scope, attempt, token, failures, crashes, run, version, record = row[:13]
    memos = row[FIXED_VALUES + 1 :]
    try:
        return Claim(
            unescape_id(id), queue.decode(), (name or b"").decode(), payload or NO_DATA, opts, scope.decode(), attempt,
            token.decode(), failures, crashes, 0, run.decode() if run is not None else None, version, record,
            {memos[n].decode(): memos[n + 1] for n in range(0, len(memos), 2)}, now,
            row[15].decode() if row[15] is not None else FLOW, None if name is not None else NO_NAME,
        )  # fmt: skip
    except UnicodeDecodeError as problem:
        return _unreadable(row, now, problem)


def _unreadable(row: list[Any], now: int, problem: UnicodeDecodeError) -> Claim:
    """Return a claim with the parts that can be decoded: enough to end the job."""
    text: list[str] = [value.decode(errors="replace") if value is not None else "" for value in (row[2], row[5])]
    is_step = row[10] is not None and row[12] is not None
    return Claim(
        unescape_id(row[0]), row[1].decode(), text[0], row[3] or NO_DATA, row[4], text[1], row[6], row[7].decode(),
        row[8], row[9], 0, row[10].decode(errors="replace") if is_step else None, row[11], row[12], {}, now,
        row[15].decode(errors="replace") if row[15] is not None else FLOW,
        f"its name, scope, run or memos must be UTF-8, got {bytes(problem.object[:20])!r}: {problem.reason}",
    )  # fmt: skip
