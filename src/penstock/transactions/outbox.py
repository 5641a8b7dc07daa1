"""The outbox table: its statements and the encoding of its rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ..core.clock import MAX_TIME_MS
from ..core.errors import BadArgument
from ..core.events import decode_event, describe_unreadable
from ..core.ids import MAX_ID_CHARS, check_id, check_name
from ..core.options import check_priority
from ..ports.unit import NewEvent, NewJob, RunWrite, Unit
from ..stores.sql_files import Queries

SQL = Queries(__package__, "outbox.sql")

MAX_JOB_ID_CHARS = MAX_ID_CHARS + 112  # of a step's job: its run's id, its step's name and a number

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Unit)


def create_statement(dialect: str) -> str:
    """Return the statement that creates the table if it does not exist."""
    return str(getattr(SQL, f"create_{dialect}"))


def exists_statement(dialect: str) -> str:
    """Return the statement that selects a row if the table exists."""
    return str(getattr(SQL, f"exists_{dialect}"))


class OutboxRow(NamedTuple):
    """A unit as it is stored. The store recognizes it by `id`; `summary` is for people."""

    id: str
    summary: str
    unit: str


def encode_row(unit: Unit) -> OutboxRow:
    """Return the row that stores a unit."""
    return OutboxRow(unit.id, _summarize(unit), _encode(unit).decode())


def decode_unit(text: Any) -> Unit:
    """Return the unit of a row, with a key: the store applies it once, however often it is delivered.

    Raise msgspec.MsgspecError or PenstockError for a row that no command writes: the store would refuse it every time,
    or keep what no worker can read.
    """
    if not isinstance(text, str | bytes):
        raise BadArgument(f"unit must be JSON, got {text!r}")
    unit = _decoder.decode(text)
    _check(unit)
    if unit.once_key is None:
        unit.once_key = f"outbox/{unit.id}"
    return unit


def _check(unit: Unit) -> None:
    if not unit.id or "\0" in unit.id:
        raise BadArgument(f"the id of a unit must be a string, got {unit.id!r}")
    if unit.claim is not None or unit.outcome is not None or unit.schedule is not None:
        raise BadArgument("unit must start a run, emit events or add jobs, got the end of an attempt or of a slot")
    if unit.run is not None:
        _check_run(unit.run)
    for event in unit.events:
        _check_stream(event.stream)
        _check_event(event)
    for job in unit.jobs:
        _check_job(job)


def _check_stream(name: str) -> None:
    parts = name.split(":")
    if len(parts) not in (2, 3) or not all(parts):
        raise BadArgument(f"an event's stream must be <namespace>:<type>:<id>, got {name!r}")


def _check_event(event: NewEvent) -> None:
    for body in (event.body, event.original):
        if body is not None and (found := decode_event(event.stream, 1, 0, body)).is_unreadable:
            raise BadArgument(describe_unreadable(event.stream, found))


def _check_run(run: RunWrite) -> None:
    check_id(run.id, "run id")
    check_name(run.flow, "flow name")
    _check_json(run.record, f"the record of run {run.id}")
    if run.expect:
        raise BadArgument(f"run.expect must be 0, because the row starts a run, got {run.expect}")


def _check_job(job: NewJob) -> None:
    check_id(job.id, "job id", MAX_JOB_ID_CHARS)
    check_name(job.queue, "queue name")
    check_priority(job.priority)
    if not 0 <= job.due <= MAX_TIME_MS:
        raise BadArgument(f"due of job {job.id} must be from 0 to {MAX_TIME_MS} (milliseconds), got {job.due}")
    _check_json(job.payload, f"the input of job {job.id}")
    _check_json(job.opts, f"the options of job {job.id}")


def _check_json(data: bytes, what: str) -> None:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise BadArgument(f"{what} must be JSON: {problem}") from None


def _summarize(unit: Unit) -> str:
    if unit.run is not None:
        return f"start {unit.run.flow} {unit.run.id}"
    if unit.jobs:
        return f"{unit.jobs[0].name} in {unit.jobs[0].queue}, {len(unit.jobs)} job{'s' * (len(unit.jobs) > 1)}"
    return f"emit {unit.events[0].kind}" if unit.events else "nothing"
