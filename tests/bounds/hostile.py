"""Values that no method expects, by name, and what a method may answer to them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any

from penstock import PenstockError
from penstock.core.text import escape_lines

MAX_MESSAGE_CHARS = 4_000


class Broken:
    """An object whose every method raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")


class Anything:
    """A class that can be made of anything."""

    def __init__(self, *arguments: object) -> None: ...


class Colour(Enum):
    RED = "\ud800"


def _nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


# Text that Postgres cannot compress, near the longest that an index holds.
_DENSE = "".join(map(chr, random.Random(7).choices(range(0x4E00, 0x9FA5), k=2_000)))

VALUES: dict[str, Any] = {
    "None": None,
    "True": True,
    "False": False,
    "0": 0,
    "-1": -1,
    "1": 1,
    "2**31": 2**31,
    "2**63": 2**63,
    "-2**70": -(2**70),
    "10**5000": 10**5000,
    "0.5": 0.5,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "1e308": 1e308,
    "''": "",
    "space": " ",
    "word": "a",
    "digits": "1" * 30,
    "many digits": "1" * 5_000,
    "500 dense": _DENSE[:500],
    "2000 dense": _DENSE,
    "501 letters": "a" * 501,
    "100 KB": "x" * 100_000,
    "NUL": "a\0b",
    "surrogate": "a\ud800b",
    "escape": "\x1b]0;title\x07\x1b[31mred",
    "C1": "\x9b31m\x85",
    "lines": "a\nb\r\tc",
    "bidi": "\u202egpj.exe",
    "emoji": "😀" * 120,
    "dots": "." * 300,
    "colons": ":" * 20,
    "braces": "{}%s{0}",
    "path": "../../etc/passwd",
    "date": "2030-01-01",
    "year 99999": "+099999-01-01T00:00:00.000Z",
    "cron": "* * * * *",
    "bytes": b"bytes",
    "bad bytes": b"\xff\xfe\0",
    "[]": [],
    "()": (),
    "[None]": [None],
    "['a']": ["a"],
    "[surrogate]": ["\ud800"],
    "[unhashable]": [[], {}],
    "long list": [1] * 2_000,
    "deep list": _nested(100_000, lambda value: [value]),
    "deep object": _nested(2_000, lambda value: {"a": value}),
    "{}": {},
    "{1: 2}": {1: 2},
    "{NUL}": {"a\0": "b\0"},
    "{surrogate}": {"\ud800": "\ud800"},
    "{nan}": {"a": math.nan},
    "{'a': 'b'}": {"a": "b"},
    "{'a': 10**400}": {"a": 10**400},
    "{dense}": {_DENSE: _DENSE},
    "set": {1, "a"},
    "object": object(),
    "Broken": Broken(),
    "[Broken]": [Broken()],
    "class": Anything,
    "function": lambda *_args: object(),
    "generator": (n for n in ()),
    "Ellipsis": ...,
    "complex": 1j,
    "NaN": Decimal("NaN"),
    "enum": Colour.RED,
    "error": ValueError("\ud800"),
    "naive time": datetime(2030, 1, 1),
    "first time": datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    "last time": datetime.max.replace(tzinfo=timezone(-timedelta(hours=14))),
    "now": datetime(2030, 1, 1, tzinfo=UTC),
    "day": date(2030, 1, 1),
    "timedelta.max": timedelta.max,
    "-1 s": -timedelta(seconds=1),
}


def complain(problem: BaseException) -> str | None:
    """Return what is wrong with an exception as an answer to a bad argument; None if it is one of ours, on few lines."""
    if not isinstance(problem, PenstockError):
        return f"{type(problem).__name__}: {ascii(problem)[:300]}"
    message = str(problem)
    if len(message) > MAX_MESSAGE_CHARS:
        return f"a message of {len(message):,} characters: {message[:200]!a}"
    if escape_lines(message) != message:
        return f"control characters in the message {message[:300]!a}"
    return None
