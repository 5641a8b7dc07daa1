"""Retry policy and backoff: pure, the same for steps and jobs."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from .durations import MAX_DURATION_MS, to_ms
from .errors import DefinitionError, Permanent, Retry, SchemaViolation
from .options import DELAY_META, read_options
from .payload import MAX_INTEGER
from .text import shorten

BackoffType = Literal["fixed", "exponential"]
_ERRORS = Meta(description="a list of error class names or codes, such as ['ValueError']")


class Backoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How long to wait before the next attempt.

    Args:
        type: `"fixed"` waits the same time; `"exponential"` doubles it after each failure.
        delay_ms: The wait after the first failure.
        max_delay_ms: The maximum wait.
        jitter: Make half of each wait random, so that simultaneous failures spread out.
    """

    type: BackoffType = "exponential"
    delay_ms: Annotated[int, DELAY_META] = 1000
    max_delay_ms: Annotated[int, DELAY_META] = 60_000
    jitter: bool = True

    aliases: ClassVar[Mapping[str, str]] = {"delay": "delay_ms", "max_delay": "max_delay_ms", "cap": "max_delay_ms"}


class RetryPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How often to try, how long to wait between tries, and which errors to retry.

    Args:
        attempts: The number of tries, the first one included.
        backoff: How long to wait between tries.
        retriable_errors: Names or codes of the errors to retry; empty for all.
        on_fail: What happens after the last failure: `"dlq"` makes a dead letter, `"drop"` does not.
    """

    attempts: Annotated[
        int, Meta(ge=1, le=MAX_INTEGER, description="a whole number of at least 1 (the first try counts)")
    ] = 1
    backoff: Backoff = Backoff()
    retriable_errors: Annotated[tuple[str, ...], _ERRORS] = ()
    on_fail: Literal["dlq", "drop"] = "dlq"

    @classmethod
    def parse(cls, value: RetryOption | None) -> RetryPolicy:
        """Read `retry=3`, a spec `retryPolicy` mapping or a policy."""
        if value is None:
            return cls()
        if type(value) is int:
            if 1 <= value <= MAX_INTEGER:
                return cls(value)
            value = {"attempts": value}
        if not isinstance(value, RetryPolicy | Mapping):
            raise DefinitionError(
                f"retry must be a number of attempts or a policy with attempts and backoff, got {shorten(value)}"
            )
        if isinstance(value, Mapping):
            # The specs' onFail "retry" has no meaning of its own: `attempts` is the number of tries.
            value = {key: "dlq" if (key, item) in _SPEC_RETRY else item for key, item in value.items()}
        return read_options(RetryPolicy, value, "retry")

    def allows(self, error: BaseException) -> bool:
        """Return whether this kind of error is retried at all."""
        retriable = read_error_attribute(error, "retriable")
        if isinstance(error, Permanent | SchemaViolation) or retriable is False:
            return False
        if isinstance(error, Retry) or retriable is True or not self.retriable_errors:
            return True
        names = {cls.__name__ for cls in type(error).__mro__} | {_text(read_error_attribute(error, "code"))}
        return not names.isdisjoint(self.retriable_errors)

    def delay_ms(self, failures: int, rng: random.Random) -> int:
        """Return the wait after a number of failures (1 after the first)."""
        base = min(self.backoff.delay_ms, MAX_DURATION_MS)  # another program may have written any number
        if self.backoff.type == "exponential":
            base = min(base * 2 ** min(failures - 1, 40), self.backoff.max_delay_ms)
        # Half fixed, half random: simultaneous failures spread out, and no retry is immediate.
        return round(base / 2 + rng.random() * base / 2) if self.backoff.jitter else base

    def next_delay_ms(self, error: BaseException, failures: int, rng: random.Random) -> int | None:
        """Return the milliseconds until the next attempt, or None when this failure is final."""
        if failures >= self.attempts or not self.allows(error):
            return None
        asked, _ = requested_delay(error)
        return asked if asked is not None else self.delay_ms(failures, rng)


def requested_delay(error: BaseException) -> tuple[int | None, str]:
    """Return the wait an error requests, in milliseconds; or why its request cannot be used.

    Errors of other libraries may hold anything there, such as an HTTP date: the policy decides then."""
    for name in ("after", "retry_after"):
        try:
            asked = getattr(error, name, None)
            if asked is not None:
                return to_ms(asked), ""
        except Exception as problem:  # also raised by a property
            return (
                None,
                f"`{name}` is ignored and the retry policy sets the delay: {_text(problem) or type(problem).__name__}",
            )
    return None, ""


def read_error_attribute(error: BaseException, name: str) -> Any:
    """Return an attribute of an error; None if it has none, or reading it fails."""
    try:
        return getattr(error, name, None)
    except Exception:  # raised by a property: the error must still be recorded
        return None


def _text(value: object) -> str:
    try:
        return "" if value is None else str(value)
    except Exception:
        return ""


RetryOption = RetryPolicy | Mapping[str, Any] | int
"""How people write a policy: `3`, a mapping such as the specs' `retryPolicy`, or the policy itself."""

_SPEC_RETRY = (("on_fail", "retry"), ("onFail", "retry"))
