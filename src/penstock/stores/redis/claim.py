"""Requests for work as the arguments of a script, and its reply as claims."""

from __future__ import annotations

from typing import Any

from ...core.ids import new_token
from ...ports.unit import Claim, ClaimBatch, ClaimRequest, QueueDemand
from .names import outside
from .resp import HEAD, Part
from .schedulers import Scheduled

FIXED = 15  # values that every claim has


def encode(ask: ClaimRequest | None) -> list[Part]:
    """What plain_claims.lua and claim.lua read."""
    if ask is None:
        return [0]
    out: list[Part] = [len(ask.queues), ask.lease_ms, ask.worker, new_token(), "" if ask.limit is None else ask.limit]
    for want in ask.queues:
        out += _want(want)
    return out


def _want(want: QueueDemand) -> tuple[Part, ...]:
    rate = want.rate
    limits: tuple[Part, ...] = ("", "", "0")
    if rate is not None:
        limits = (rate.max, rate.duration_ms, "1" if rate.per_key else "0")
    return want.queue, want.limit, *limits, "" if want.max_active is None else want.max_active


def claims(reply: Any, here: int | None) -> ClaimBatch:
    """What was handed out. The time to ask again is told by the clock of whoever asks, which says `here`: by that of a
    server that is behind it would seem to be over already, and be asked for again and again."""
    now, due = reply[2:4]
    if due is not None and here is not None:
        due += here - now
    return ClaimBatch([_claim(row, now) for row in _rows(reply)], due)


def scheduled(reply: Any) -> list[Scheduled]:
    """Those that a scheduler of another program has made: its next job is made when one is handed out."""
    rows = [row for row in _rows(reply) if row[13] is not None]
    return [Scheduled(row[1].decode(), row[0].decode(), row[13].decode(), row[14]) for row in rows]


def topics(reply: Any) -> set[str]:
    """What handing out has touched."""
    return set(reply[4].decode().split("\n")) if reply[4] else set()


def emptied(reply: Any) -> set[str]:
    """Queues of which nothing due is left."""
    return {f"queue:{queue}" for queue in reply[5].decode().split("\n")} if reply[5] else set()


def _rows(reply: list[Any]) -> list[list[Any]]:
    """Each claim: what all have, how many names and values its memos are, and these."""
    rows, at = [], HEAD + reply[1]
    while at < len(reply):
        end = at + FIXED + 1 + reply[at + FIXED]
        rows.append(reply[at:end])
        at = end
    return rows


def _claim(row: list[Any], now: int) -> Claim:
    id, queue, name, payload, opts, scope, attempt, secret, failures, crashes, run, version, record = row[:13]
    memos = row[FIXED + 1 :]
    return Claim(
        outside(id), queue.decode(), name.decode(), payload, opts, scope.decode(), attempt, secret.decode(), failures,
        crashes, 0, run.decode() if run is not None else None, version, record,
        {memos[n].decode(): memos[n + 1] for n in range(0, len(memos), 2)}, now,
    )  # fmt: skip
