"""What happens to a message that failed: the next attempt, or the dead letter. Pure, the same for every bridge."""

from __future__ import annotations

import random
import traceback
from typing import Any

import msgspec

from ..core.clock import to_iso
from ..core.errors import PayloadError, Permanent, StoreUnavailable
from ..core.retry import Backoff, RetryPolicy
from ..core.text import shorten
from ..ports.bridge import Message

DEFAULT_RETRY = RetryPolicy(3, Backoff("exponential", 30_000, 86_400_000, jitter=False))
"""Attempts after 0, 30 and 60 seconds, then a dead letter."""
MAX_ERROR_CHARS = 2000
MAX_STACK_CHARS = 8000


class DeadLetters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where messages go that finally failed.

    Args:
        enabled: Whether they go anywhere. A message without a dead letter is only in the log.
        suffix: Added to the name of the queue.
    """

    enabled: bool = True
    suffix: str = "-dlq"


class MessageError(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as a dead letter has it."""

    message: str
    stack: str | None = None


class DeadMessage(msgspec.Struct, frozen=True, rename="camel"):
    """The record of a message that finally failed, the data of a job named `<name>-failed`."""

    original_job_id: str
    original_job_name: str
    original_data: Any
    error: MessageError
    failed_at: str
    attempts_made: int


def decide_retry(policy: RetryPolicy, problem: Exception, failures: int, rng: random.Random) -> int | None:
    """Return the milliseconds until the next attempt, None if this failure is final."""
    if isinstance(problem, Permanent | PayloadError):
        return None
    return policy.next_delay_ms(problem, failures, rng)


def is_outage(problem: BaseException) -> bool:
    """Return whether our store did not answer. It is no failure of the message, and uses up no attempt."""
    return isinstance(problem, StoreUnavailable)


def describe_problem(problem: BaseException) -> str:
    """Return the message of an error, or its class if it has none."""
    try:
        text = str(problem)[:MAX_ERROR_CHARS]
    except Exception:  # raised by its own __str__
        text = ""
    return text.encode("utf-8", "replace").decode() or type(problem).__name__


def urn_of(message: Message) -> Any:
    """Return the urn of a message for the log, None if it has none."""
    return message.data.get("urn") if isinstance(message.data, dict) else None


def describe_stack(problem: BaseException) -> str:
    """Return the traceback of an error without the message: that one is in the record already."""
    lines = traceback.format_tb(problem.__traceback__)
    return "".join([*lines, type(problem).__name__])[-MAX_STACK_CHARS:]


def build_dead_message(message: Message, problem: BaseException, now_ms: int, attempts: int) -> bytes:
    """Return the record of a message that finally failed, as JSON."""
    error = MessageError(describe_problem(problem), describe_stack(problem))
    record = DeadMessage(message.id, message.name, message.data, error, to_iso(now_ms), attempts)
    try:
        return msgspec.json.encode(record)
    except (TypeError, ValueError, RecursionError):  # data that came in has a JSON form; a caller's Message may not
        return msgspec.json.encode(msgspec.structs.replace(record, original_data=shorten(message.data)))
