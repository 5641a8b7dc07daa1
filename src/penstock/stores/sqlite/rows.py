"""Many rows in one statement: a thread that lets go of the interpreter queues for it again, so it does so seldom."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import apsw

WIDEST = 256
_ROW = re.compile(r"\((?:\?, )*\?\)")


def write_rows(cursor: apsw.Cursor, sql: str, columns: int, values: list[Any]) -> None:
    """Runs a statement that is written for one row `(?, ?)` with any number of them, their values one after another.

    It is run with some rows of NULLs as well, which it has to pass over: statements of a few widths stay prepared,
    those of every width would not.
    """
    for start in range(0, len(values), WIDEST * columns):
        part = values[start : start + WIDEST * columns]
        count = len(part) // columns
        width = 1 << (count - 1).bit_length()
        part.extend([None] * ((width - count) * columns))
        cursor.execute(_widened(sql, width), part)


@lru_cache(maxsize=200)
def _widened(sql: str, width: int) -> str:
    return _ROW.sub(lambda row: ", ".join([row[0]] * width), sql, count=1)
