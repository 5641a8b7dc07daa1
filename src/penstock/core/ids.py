"""Ids: which are allowed, how they are made, how they are put together.

Ids use `[A-Za-z0-9._-]`, are never only digits and hold no `:` (BullMQ refuses both).
"""

from __future__ import annotations

import hashlib
import os
import re

from .errors import PenstockError

MAX_ID = 200
MAX_SCHEDULE_ID = 160
_ID = re.compile(r"[A-Za-z0-9._-]+")
# At most 18 digits, so that every store's 64-bit integers hold the sequence of a cursor someone made up.
_EVENT_ID = re.compile(r"[0-9]{1,18}-([0-9]{1,18})")
_STEP_JOB = re.compile(r".+\..+\.[0-9]{1,9}")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class BadId(PenstockError):
    """An id or a name has characters that not every store can hold."""

    code = "bad_id"


def check_id(value: str, what: str = "id", most: int = MAX_ID) -> str:
    """The id itself, or BadId saying which rule it breaks."""
    if not isinstance(value, str) or not _ID.fullmatch(value) or value.isdigit() or len(value) > most:
        raise BadId(
            f"{value!r} cannot be used as {what}: use letters, digits, '.', '_' and '-', not digits alone, "
            f"at most {most} characters"
        )
    return value


def check_schedule_id(value: str) -> str:
    """An id for a schedule: what it starts is called after it and the slot, or a UUID."""
    return check_id(value, "schedule id", MAX_SCHEDULE_ID)


def check_name(value: str, what: str) -> str:
    """A queue, flow or step name; names become parts of ids and keys."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or value.isdigit() or len(value) > 100:
        raise BadId(
            f"{value!r} cannot be used as {what}: use letters, digits, '.', '_' and '-', not digits alone, "
            "at most 100 characters"
        )
    return value


def check_namespace(value: str) -> str:
    """A namespace; in braces, all that begins with it is in one slot of a Redis Cluster."""
    tagged = isinstance(value, str) and value.startswith("{") and value.endswith("}")
    check_name(value[1:-1] if tagged else value, "namespace")
    return value


def check_job_id(value: str) -> str:
    """An id for a plain job; those a flow gives its steps (`run.step.1`) are not to be had."""
    if isinstance(value, str) and _STEP_JOB.fullmatch(value):
        raise BadId(f"{value!r} cannot be used as job id: a flow may give it to a step; end it otherwise than in .1")
    return check_id(value, "job id")


def uuid7(now_ms: int) -> str:
    """A UUIDv7: ordered by time, so that rows made together lie together."""
    random = int.from_bytes(os.urandom(10), "big")
    value = (now_ms & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | (random >> 68) << 64 | 0b10 << 62 | random & (1 << 62) - 1
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_token() -> str:
    """The secret of one claim; a commit without it is refused."""
    return os.urandom(9).hex()


def digest(data: bytes) -> str:
    """A short, stable name for a payload, used for `idempotency_key="auto"` and pinned tables."""
    return hashlib.sha256(data).hexdigest()[:32]


def step_job_id(run: str, step: str, n: int) -> str:
    return f"{run}.{step}.{n}"


def dead_letter_id(job: str) -> str:
    return f"{job}.dlq"


def event_id(ms: int, seq: int) -> str:
    return f"{ms}-{seq}"


def event_seq(cursor: str) -> int:
    """The sequence part of an event id, which is the position in its stream."""
    found = _EVENT_ID.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None:
        raise BadId(f"{cursor!r} is not an event id; one looks like 1719667845123-7")
    return int(found[1])
