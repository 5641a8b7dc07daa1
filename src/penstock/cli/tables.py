"""Lists: a table for a person at a terminal, plain lines under a header for a pipe, JSON lines for a program."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import warn
from .output import print_json
from .run_view import one_line

WIDE = 10_000  # characters of a value on a line


def show_list(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, json: bool, none: str) -> None:
    """Prints rows; `columns` are the keys that people are shown, a program is given all of them."""
    if json:
        for row in rows:
            print_json(row)
    elif not rows:
        warn(none)
    elif sys.stdout.isatty():
        _table(rows, columns)
    else:
        cells = [list(columns), *([cell(row.get(column)) or "-" for column in columns] for row in rows)]
        widths = [max(len(line[n]) for line in cells) for n in range(len(columns))]
        for line in cells:
            print("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


def show_object(value: Mapping[str, Any], *, json: bool) -> None:
    """Prints one thing: a line for each of its keys, or one JSON object."""
    if json:
        print_json(value)
        return
    width = max(map(len, value), default=0)
    for key, item in value.items():
        print(f"{key:<{width}}  {cell(item)}".rstrip())


def counted(count: int, thing: str) -> str:
    """`1 flow`, `2 flows`."""
    return f"{count} {thing}{'s' * (count != 1)}"


def done(message: str, answer: Mapping[str, Any], *, json: bool) -> None:
    """What an action has done: a sentence for people, an object for programs."""
    if json:
        print_json(answer)
    else:
        print(message)


def cell(value: Any) -> str:
    """A value as text on one line; nothing for None and for what is not so."""
    if value is None or value is False:
        return ""
    return "yes" if value is True else one_line(value, WIDE)


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from .run_view import COLOURS

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        numbers = all(isinstance(row.get(column), int) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        texts = [cell(row.get(column)) for column in columns]
        table.add_row(*(Text(text, COLOURS.get(text, "")) for text in texts))
    Console().print(table)
