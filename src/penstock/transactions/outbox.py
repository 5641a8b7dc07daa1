"""The table, as statements."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..ports.unit import Unit
from ..stores.sql_files import Queries

SQL = Queries(__package__, "outbox.sql")


def creation(dialect: str) -> str:
    """The statement that creates the table, if it is not there."""
    return str(getattr(SQL, f"create_{dialect}"))


def presence(dialect: str) -> str:
    """The statement that gives a row if the table is there."""
    return str(getattr(SQL, f"there_{dialect}"))


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Unit)


class Row(NamedTuple):
    """What is kept of a unit: by its id it is known again, `what` is for people."""

    id: str
    what: str
    unit: str


def row_of(unit: Unit) -> Row:
    """The row of a unit."""
    return Row(unit.id, _what(unit), _encode(unit).decode())


def unit_of(text: str) -> Unit:
    """The unit of a row. However often it is handed over, it is applied once: by a key of its own, or by its id."""
    unit = _decoder.decode(text)
    if unit.once_key is None:
        unit.once_key = f"outbox/{unit.id}"
    return unit


def _what(unit: Unit) -> str:
    if unit.run is not None:
        return f"start {unit.run.flow} {unit.run.id}"
    if unit.jobs:
        return f"{unit.jobs[0].name} in {unit.jobs[0].queue}, {len(unit.jobs)} job{'s' * (len(unit.jobs) > 1)}"
    return f"emit {unit.events[0].kind}" if unit.events else "nothing"
