"""The outbox table: its statements and the encoding of its rows."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..core.events import decode_event
from ..core.payload import unpack
from ..ports.unit import Unit
from ..stores.sql_files import Queries

SQL = Queries(__package__, "outbox.sql")

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


def decode_unit(text: str) -> Unit:
    """Return the unit of a row, with a key: the store applies it once, however often it is delivered.

    Raise one of UNREADABLE_ERRORS if another program wrote or changed the row: its events must be readable, its jobs
    and records JSON."""
    unit = _decoder.decode(text)
    for event in unit.events:
        for body in (event.body, event.original):
            if body is not None and (found := decode_event(event.stream, 1, 0, body)).is_unreadable:
                raise ValueError(f"an event of the row cannot be read: {found.data['error']}")
    for job in unit.jobs:
        unpack(job.payload)
        unpack(job.opts)
    if unit.run is not None:
        unpack(unit.run.record)
    if unit.once_key is None:
        unit.once_key = f"outbox/{unit.id}"
    return unit


def _summarize(unit: Unit) -> str:
    if unit.run is not None:
        return f"start {unit.run.flow} {unit.run.id}"
    if unit.jobs:
        return f"{unit.jobs[0].name} in {unit.jobs[0].queue}, {len(unit.jobs)} job{'s' * (len(unit.jobs) > 1)}"
    return f"emit {unit.events[0].kind}" if unit.events else "nothing"
