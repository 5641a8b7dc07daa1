"""Schedules that code declares: `schedule=` of a decorator, `schedule` or `cron` of a worker file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..core.errors import DefinitionError, PenstockError
from ..core.ids import check_schedule_id
from ..core.options import check_priority, rename_keys
from ..core.payload import pack, unpack
from ..core.text import shorten

if TYPE_CHECKING:
    from ..handlers.handler import Handler
from .spec import CODE_ORIGIN, BadSchedule, ScheduleSpec, make_spec

ScheduleConfig = str | Mapping[str, Any]
"""A cron expression ("0 9 * * 1-5"), an interval ("15m"), or a mapping with the arguments of `app.schedules.add`."""

_TIMES = ("at", "start", "end")
_OPTIONS = {"id", "every", "cron", "tz", *_TIMES, "limit", "overlap", "catch_up", "input", "priority"}


@dataclass(frozen=True)
class DeclaredSchedule:
    """A schedule declared in code. Without an id it has the name of the flow or job it starts."""

    spec: ScheduleSpec
    id: str | None = None
    input: Any = None
    priority: int | None = None


def read_schedule(value: ScheduleConfig | None, handler: Handler) -> DeclaredSchedule | None:
    """Validate the schedule of a definition. A DefinitionError names the file and the line."""
    if value is None:
        return None
    try:
        return _read(value, handler)
    except DefinitionError:
        raise
    except PenstockError as problem:
        raise DefinitionError(f"schedule: {problem}", where=handler.where) from None


def _read(value: ScheduleConfig, handler: Handler) -> DeclaredSchedule:
    if isinstance(value, str):
        value = {"cron": value} if len(value.split()) > 1 else {"every": value}
    if not isinstance(value, Mapping):
        raise BadSchedule(
            'a schedule must be a cron expression such as "0 9 * * 1-5", an interval such as "15m", or a mapping '
            f'such as {{"cron": …, "tz": …}}, got {shorten(value)}'
        )
    options = rename_keys(value, _OPTIONS, "schedule", where=handler.where)
    id, input, priority = options.pop("id", None), options.pop("input", None), options.pop("priority", None)
    for name in _TIMES:
        if isinstance(options.get(name), str):
            options[name] = _parse_time(name, options[name])
    handler.check_input(unpack(pack(input, "the input of the schedule")))
    return DeclaredSchedule(
        make_spec(**options, origin=CODE_ORIGIN),
        check_schedule_id(id) if id is not None else None,
        input,
        check_priority(priority) if priority is not None else None,
    )


def _parse_time(name: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise BadSchedule(f"{name} must be a time such as 2030-01-31T09:00:00+01:00, got {shorten(text)}") from None
