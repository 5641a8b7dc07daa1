"""Triggers of a dag: what starts its runs. They are stored when a version is registered, and removed with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..core.errors import DefinitionError
from ..core.events import check_kind
from ..core.options import rename_keys
from ..core.payload import to_plain
from ..core.text import shorten
from ..handlers.webhooks import check_webhook
from ..schedules.spec import ScheduleSpec, make_spec

KINDS = ("schedule", "webhook", "event")


class ScheduleTrigger(msgspec.Struct, frozen=True, omit_defaults=True):
    """Starts a run at each slot of a cron expression, or of an interval such as "15m"."""

    cron: str | None = None
    every: str | None = None
    tz: str = "UTC"
    input: Any = None

    def make_spec(self, dag: str) -> ScheduleSpec:
        """Return when it fires. Raise BadSchedule if a value is wrong."""
        return make_spec(cron=self.cron, every=self.every, tz=self.tz, origin=schedule_origin(dag))


class WebhookTrigger(msgspec.Struct, frozen=True, omit_defaults=True):
    """Starts a run with the body of each call of a path with a method."""

    path: str
    method: str = "POST"


class EventTrigger(msgspec.Struct, frozen=True, omit_defaults=True):
    """Starts a run with the data of each event of a kind that contains `match`."""

    kind: str
    match: dict[str, Any] = {}


class Trigger(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the three."""

    schedule: ScheduleTrigger | None = None
    webhook: WebhookTrigger | None = None
    event: EventTrigger | None = None


_TEXT_KEYS = {"schedule": "cron", "webhook": "path", "event": "kind"}
_OPTIONS = {
    "schedule": {"cron", "every", "tz", "input"},
    "webhook": {"path", "method"},
    "event": {"kind", "match"},
}
_TYPES: Mapping[str, Any] = {"schedule": ScheduleTrigger, "webhook": WebhookTrigger, "event": EventTrigger}


def read_trigger(value: Any) -> Trigger:
    """Read `{"schedule": …}`, `{"webhook": …}` or `{"event": …}`; also `{"type": "schedule", "config": {…}}`. Raise a
    PenstockError that says what is wrong."""
    if isinstance(value, Mapping) and isinstance(value.get("type"), str):
        value = {value["type"]: value.get("config")}
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in KINDS:
        raise DefinitionError(f"a trigger must be an object with one of {', '.join(KINDS)}, got {shorten(value)}")
    kind, options = next(iter(value.items()))
    if isinstance(options, str):
        options = {"every" if kind == "schedule" and " " not in options else _TEXT_KEYS[kind]: options}
    if not isinstance(options, Mapping):
        raise DefinitionError(f"{kind} must be a text or an object, got {shorten(options)}")
    renamed = {"tz" if key == "timezone" else key: one for key, one in options.items()}
    plain = to_plain(rename_keys(renamed, _OPTIONS[kind], kind), kind)
    try:
        found = msgspec.convert(plain, _TYPES[kind])
    except msgspec.ValidationError as problem:
        raise DefinitionError(f"{kind}: {problem}") from None
    return Trigger(**{kind: _check(found)})


def _check(found: Any) -> Any:
    if isinstance(found, ScheduleTrigger):
        found.make_spec("check")
    elif isinstance(found, WebhookTrigger):
        checked = check_webhook(found.path, flow="check", method=found.method)
        return WebhookTrigger(checked.path, checked.methods[0])
    else:
        check_kind(found.kind)
    return found


def schedule_origin(dag: str) -> str:
    """Return the origin of the schedules of a dag: only they are removed with it."""
    return f"dag {dag}"


def schedule_id(dag: str, n: int) -> str:
    """Return the id of a schedule of a dag. A changed cron expression keeps it."""
    return f"dag.{dag}.{n}"
