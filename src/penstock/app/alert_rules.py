"""Alert rules: a line of text each, such as `failure_rate > 10% over 15m on mail`."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ..core.durations import to_ms
from ..core.errors import SettingError
from ..core.near_match import did_you_mean
from ..core.text import shorten

FAILURE_RATE, OLDEST_AGE, NO_WORKER, NEW_ERROR_GROUP, MISSED_SLOT = (
    "failure_rate",
    "oldest_age",
    "no_worker",
    "new_error_group",
    "missed_slot",
)
KINDS = (FAILURE_RATE, OLDEST_AGE, NO_WORKER, NEW_ERROR_GROUP, MISSED_SLOT)
_DEFAULTS = {OLDEST_AGE: "5m", NO_WORKER: "1m", MISSED_SLOT: "2m"}
DEFAULT_RATE, DEFAULT_OVER, DEFAULT_MIN_JOBS = "10%", "15m", 10
_FORM = re.compile(
    r"(?P<kind>\w+)(?: > (?P<limit>\S+))?(?: over (?P<over>\S+))?(?: min (?P<min>\d{1,9}))?(?: on (?P<on>\S+))?"
)
_EXAMPLE = "'failure_rate > 10% over 15m', 'oldest_age > 5m on mail', 'no_worker', 'new_error_group' or 'missed_slot'"


class AlertRule(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A condition that operators want to hear of.

    Attributes:
        rule: Its text, in one spelling; silences and history name it.
        kind: `failure_rate`, `oldest_age`, `no_worker`, `new_error_group` or `missed_slot`.
        on: The only queue, or for `missed_slot` the only schedule; None for all.
        limit_ms: Of an age: it fires above it.
        rate: Of failures: it fires above this share of the jobs that ended.
        over_ms: The time in which failures are counted.
        min_jobs: Fewer jobs that ended in that time do not fire.
    """

    rule: str
    kind: str
    on: str | None = None
    limit_ms: int = 0
    rate: float = 0.0
    over_ms: int = 0
    min_jobs: int = 0

    def concerns(self, subject: str) -> bool:
        """Return whether the rule looks at this queue or schedule."""
        return self.on is None or self.on == subject


def parse_rules(texts: Sequence[str]) -> list[AlertRule]:
    """Read rules. Raise SettingError for one that cannot be read."""
    return list({rule.rule: rule for rule in map(parse_rule, texts)}.values())


def parse_rule(text: str) -> AlertRule:
    """Read a rule. Raise SettingError with what is wrong."""
    found = _FORM.fullmatch(" ".join(text.replace(">", " > ").split()))
    if found is None:
        raise SettingError(f"invalid alert rule {shorten(text)}; write a rule such as {_EXAMPLE}")
    kind, limit, on = found["kind"], found["limit"], found["on"]
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS) or f"known rules: {', '.join(KINDS)}"
        raise SettingError(f"invalid alert rule {shorten(text)}: no rule {kind!r}; {hint}")
    if kind != FAILURE_RATE and (found["over"] or found["min"]):
        raise SettingError(f"invalid alert rule {shorten(text)}: only failure_rate has `over` and `min`")
    tail = f" on {on}" if on else ""
    try:
        if kind == FAILURE_RATE:
            limit, over, least = limit or DEFAULT_RATE, found["over"] or DEFAULT_OVER, found["min"] or DEFAULT_MIN_JOBS
            spelling = f"failure_rate > {limit} over {over} min {least}{tail}"
            return AlertRule(spelling, kind, on, rate=_share(limit), over_ms=to_ms(over), min_jobs=int(least))
        if kind == NEW_ERROR_GROUP:
            if limit:
                raise ValueError("new_error_group has no limit")
            return AlertRule(f"new_error_group{tail}", kind, on)
        limit = limit or _DEFAULTS[kind]
        ms = to_ms(limit)
    except (ValueError, TypeError) as problem:
        raise SettingError(f"invalid alert rule {shorten(text)}: {problem}") from None
    return AlertRule(f"{kind} > {limit}{tail}", kind, on, limit_ms=ms)


def _share(text: str) -> float:
    """Read `10%` or `0.1`."""
    share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    if not 0 <= share < 1:
        raise ValueError(f"the limit must be a share such as 10% or 0.1, got {text!r}")
    return share
