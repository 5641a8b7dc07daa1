"""Retry policy and backoff: pure, the same for steps and jobs."""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, get_args

import msgspec

from .durations import MAX_DURATION_MS, MAX_DURATION_TEXT, Duration, to_ms
from .errors import DefinitionError, Permanent, Retry, SchemaViolation

BackoffType = Literal["fixed", "exponential"]


class Backoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How long to wait before the next attempt."""

    type: BackoffType = "exponential"
    delay_ms: int = 1000
    max_delay_ms: int = 60_000
    jitter: bool = True


class RetryPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How often to try, how long to wait between, and which errors are worth it.

    `attempts` counts every try, the first one included. `retriable_errors` lists class names or codes; empty means all.
    `on_fail` says what becomes of a job that failed for good: a dead letter, or nothing (`drop`).
    """

    attempts: int = 1
    backoff: Backoff = Backoff()
    retriable_errors: tuple[str, ...] = ()
    on_fail: Literal["dlq", "drop"] = "dlq"

    @classmethod
    def parse(cls, value: RetryOption | None) -> RetryPolicy:
        """Reads `retry=3`, a spec `retryPolicy` mapping or a policy."""
        if value is None:
            return cls()
        if isinstance(value, bool) or not isinstance(value, RetryPolicy | int | Mapping):
            raise DefinitionError(f"retry={value!r}: give a number of attempts or a policy with attempts and backoff")
        if isinstance(value, int):
            policy = cls(attempts=value)
        else:
            policy = _checked(value) if isinstance(value, RetryPolicy) else _read(value)
        if policy.attempts < 1:
            raise DefinitionError(f"attempts={policy.attempts}: attempts counts the first try too, so at least 1")
        if policy.backoff.delay_ms < 0 or policy.backoff.max_delay_ms < 0:
            raise DefinitionError(f"retry={value!r}: a delay cannot be negative")
        if policy.backoff.delay_ms > MAX_DURATION_MS or policy.backoff.max_delay_ms > MAX_DURATION_MS:
            raise DefinitionError(f"retry={value!r}: a delay is too long: the maximum duration is {MAX_DURATION_TEXT}")
        return policy

    def allows(self, error: BaseException) -> bool:
        """Whether this kind of error is worth another try at all."""
        retriable = error_attribute(error, "retriable")
        if isinstance(error, Permanent | SchemaViolation) or retriable is False:
            return False
        if isinstance(error, Retry) or retriable is True or not self.retriable_errors:
            return True
        names = {cls.__name__ for cls in type(error).__mro__} | {_text(error_attribute(error, "code"))}
        return not names.isdisjoint(self.retriable_errors)

    def delay_ms(self, failures: int, rng: random.Random) -> int:
        """The wait after the given number of failures (1 after the first)."""
        base = min(self.backoff.delay_ms, MAX_DURATION_MS)  # a job of another program may ask for anything
        if self.backoff.type == "exponential":
            base = min(base * 2 ** min(failures - 1, 40), self.backoff.max_delay_ms)
        # Half fixed, half random: simultaneous failures spread out, and no retry comes at once.
        return round(base / 2 + rng.random() * base / 2) if self.backoff.jitter else base

    def next_delay_ms(self, error: BaseException, failures: int, rng: random.Random) -> int | None:
        """Milliseconds until the next attempt, or None when this failure is final."""
        if failures >= self.attempts or not self.allows(error):
            return None
        asked, _ = requested_delay(error)
        return asked if asked is not None else self.delay_ms(failures, rng)


def requested_delay(error: BaseException) -> tuple[int | None, str]:
    """The wait an error itself asks for, if it does, as milliseconds; or why what it asks for cannot be used.

    Errors of other libraries carry anything here, an HTTP date for one: the policy knows then."""
    for name in ("after", "retry_after"):
        try:
            asked = getattr(error, name, None)
            if asked is not None:
                return to_ms(asked), ""
        except Exception as problem:  # also of a property of theirs
            return (
                None,
                f"`{name}` is ignored, the retry policy sets the delay: {_text(problem) or type(problem).__name__}",
            )
    return None, ""


def error_attribute(error: BaseException, name: str) -> Any:
    """What an error says of itself under a name; None if it does not, or fails to."""
    try:
        return getattr(error, name, None)
    except Exception:  # a property: an error that cannot be asked still has to be recorded
        return None


def _text(value: object) -> str:
    try:
        return "" if value is None else str(value)
    except Exception:
        return ""


RetryOption = RetryPolicy | Mapping[str, Any] | int
"""How people write a policy: `3`, a mapping such as the specs' `retryPolicy`, or the policy itself."""


def _checked(policy: RetryPolicy) -> RetryPolicy:
    """A policy made by hand has whatever it was given: the same types are asked of it as of a mapping."""
    _check_names(policy.retriable_errors)
    _check_words(policy, getattr(policy.backoff, "type", None), policy.on_fail)
    try:
        return msgspec.convert(msgspec.to_builtins(policy), RetryPolicy)
    except (msgspec.ValidationError, TypeError) as problem:
        raise DefinitionError(f"retry={policy!r}: {problem}") from None


def _check_names(errors: Any) -> None:
    listed = isinstance(errors, list | tuple | set | frozenset)
    if not listed or not all(isinstance(name, str) for name in errors):
        raise DefinitionError(f"retriable_errors={errors!r}: give a list of names of classes or codes, ['ValueError']")


_POLICY = {"attempts": "attempts", "backoff": "backoff", "retriableErrors": "retriable_errors", "onFail": "on_fail"}
_BACKOFF = {
    "type": "type", "delay": "delay", "maxDelay": "max_delay", "jitter": "jitter", "delayMs": "delay_ms",
    "maxDelayMs": "max_delay_ms", "cap": "cap",
}  # fmt: skip


def _check_keys(given: Any, keys: Iterable[str], known: Mapping[str, str], what: str) -> None:
    for key in keys:
        if _camel(str(key)) not in known:
            near = difflib.get_close_matches(_camel(str(key)), list(known), 1)
            hint = f"did you mean {known[near[0]]!r}?" if near else f"known are {', '.join(known.values())}"
            raise DefinitionError(f"retry={given!r}: {what} has no {key!r}; {hint}")


def _check_words(given: Any, type_: Any, on_fail: Any) -> None:
    for name, value, words in (
        ("the backoff's type", type_, get_args(BackoffType)),
        ("on_fail", on_fail, ("dlq", "drop")),
    ):
        if value is not None and value not in words:
            raise DefinitionError(f"retry={given!r}: {name} is {value!r}: write {' or '.join(map(repr, words))}")


def _read(value: Mapping[str, Any]) -> RetryPolicy:
    fields = {_camel(str(key)): item for key, item in value.items()}
    backoff = fields.get("backoff")
    _check_keys(value, value, _POLICY, "a policy")
    if isinstance(backoff, Mapping):
        _check_keys(value, backoff, _BACKOFF, "its backoff")
    if "retriableErrors" in fields:
        _check_names(fields["retriableErrors"])
    if fields.get("onFail") == "retry":  # the attempts say how often; what comes after them is a dead letter
        fields["onFail"] = "dlq"
    type_ = backoff.get("type") if isinstance(backoff, Mapping) else getattr(backoff, "type", None)
    _check_words(value, type_, fields.get("onFail"))
    try:
        if isinstance(backoff, Mapping):
            fields["backoff"] = _read_backoff(backoff)
        return msgspec.convert(fields, RetryPolicy)
    except (msgspec.ValidationError, ValueError) as problem:
        raise DefinitionError(f"retry={dict(value)!r}: {problem}") from None


def _read_backoff(value: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, item in value.items():
        name = {"delay": "delayMs", "cap": "maxDelayMs", "maxDelay": "maxDelayMs"}.get(
            _camel(str(key)), _camel(str(key))
        )
        # A bare number under a ...Ms name is milliseconds; "2s" or a timedelta is read as a duration anywhere.
        out[name] = to_ms(item) if isinstance(item, str | timedelta) and name.endswith("Ms") else item
    return out


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def to_seconds(value: Duration) -> float:
    """A duration as seconds, for asyncio."""
    return to_ms(value) / 1000
