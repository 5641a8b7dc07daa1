"""Read state."""

from __future__ import annotations

import apsw

from ...ports.store import StateRow
from .statements import ADMIN as SQL


def get(cursor: apsw.Cursor, key: str, now: int) -> StateRow | None:
    row = cursor.execute(SQL.state, (key, now)).fetchone()
    return StateRow(*row) if row else None


def list_(cursor: apsw.Cursor, prefix: str, after: str | None, limit: int, now: int) -> list[StateRow]:
    rows = cursor.execute(SQL.states, (after or "", prefix, prefix + "\U0010ffff", now, limit))
    return [StateRow(*row) for row in rows]
