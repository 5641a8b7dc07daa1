"""Ids: which are allowed, and how they are generated and composed.

Ids use `[A-Za-z0-9._-]`, are never only digits and contain no `:` (BullMQ refuses both).
"""

from __future__ import annotations

import hashlib
import os
import re

from .errors import PenstockError
from .text import shorten

MAX_ID_CHARS = 200
MAX_SCHEDULE_ID_CHARS = 160
MAX_NAME_CHARS = 100
ROUTE_SUFFIX = ".--route"
_ID = re.compile(r"[A-Za-z0-9._-]+")
# At most 18 digits, so that the sequence of an invented cursor fits every store's 64-bit integers.
_EVENT_ID = re.compile(r"[0-9]{1,18}-([0-9]{1,18})")
_FEED_CURSOR = re.compile(r"([0-9]{1,18})(?:[.-]([0-9]{1,18}))?")
_STEP_NUMBER = re.compile(r"[0-9]{1,9}")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class BadId(PenstockError):
    """An id or a name has characters that some store cannot hold."""

    code = "bad_id"


def check_id(value: str, what: str = "id", max_chars: int = MAX_ID_CHARS) -> str:
    """Return the id, or raise BadId with the rules for ids."""
    if not isinstance(value, str) or len(value) > max_chars or not _ID.fullmatch(value) or value.isdigit():
        raise BadId(
            f"invalid {what} {shorten(value)}; use at most {max_chars} characters: letters, digits, '.', "
            "'_' and '-', but not digits alone"
        )
    return str(value)  # a handle of a run is a str too


def check_schedule_id(value: str) -> str:
    """Check the id of a schedule: the runs and jobs it starts are named after it and the slot."""
    return check_id(value, "schedule id", MAX_SCHEDULE_ID_CHARS)


def check_name(value: str, what: str) -> str:
    """Check the name of a queue, flow or step; names become parts of ids and keys."""
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS or not _NAME.fullmatch(value) or value.isdigit():
        raise BadId(
            f"invalid {what} {shorten(value)}; use at most {MAX_NAME_CHARS} characters: letters, digits, '.', "
            "'_' and '-', but not digits alone"
        )
    return value


def check_namespace(value: str) -> str:
    """Check a namespace; in braces, all its keys are in one slot of a Redis Cluster."""
    tagged = isinstance(value, str) and value.startswith("{") and value.endswith("}")
    check_name(value[1:-1] if tagged else value, "namespace")
    return value


def check_job_id(value: str) -> str:
    """Check the id of a plain job; ids of the form `run.step.1` are reserved for steps."""
    check_id(value, "job id")
    step, _, number = value.rpartition(".")
    if "." in step[1:-1] and _STEP_NUMBER.fullmatch(number):
        raise BadId(f"invalid job id {shorten(value)}; ids that end in .<number> are reserved for steps")
    return value


def uuid7(now_ms: int) -> str:
    """Return a UUIDv7: ordered by time, so that rows created together are stored together."""
    random = int.from_bytes(os.urandom(10), "big")
    value = (now_ms & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | (random >> 68) << 64 | 0b10 << 62 | random & (1 << 62) - 1
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_token() -> str:
    """Return the secret of one claim; a commit without it is refused."""
    return os.urandom(9).hex()


def digest(data: bytes) -> str:
    """Return a short, stable hash, used for `key="auto"` and pinned trigger tables."""
    return hashlib.sha256(data).hexdigest()[:32]


def step_job_id(run: str, step: str, n: int) -> str:
    """Return the id of a step's job."""
    return f"{run}.{step}.{n}"


def dead_letter_id(job: str) -> str:
    """Return the id of a job's dead letter."""
    return f"{job}.dlq"


def route_id(id: str) -> str:
    """Return the id of the internal job that evaluates the keys of a run or a job."""
    return f"{id}{ROUTE_SUFFIX}"


def event_route_id(run: str, n: int) -> str:
    """Return the id of the internal job that routes an event of a run."""
    return f"{run}{ROUTE_SUFFIX}.{n}"


def is_route(job: str) -> bool:
    """Return whether this is the id of such a job."""
    return job.endswith(ROUTE_SUFFIX)


def event_id(ms: int, seq: int) -> str:
    """Return the id of an event."""
    return f"{ms}-{seq}"


def event_seq(cursor: str) -> int:
    """Return the sequence part of an event id: the position in its stream."""
    found = _EVENT_ID.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None:
        raise BadId(f"invalid event id {shorten(cursor)}; an event id looks like 1719667845123-7")
    return int(found[1])


def parse_feed_cursor(cursor: str) -> tuple[int, int]:
    """Return the two numbers of a feed cursor; an empty one is before all events. Stores without a second one use 0."""
    if not cursor:
        return 0, 0
    found = _FEED_CURSOR.fullmatch(cursor)
    if found is None:
        raise BadId(f"invalid cursor {shorten(cursor)}; pass the cursor of the last event that you received")
    return int(found[1]), int(found[2] or 0)
