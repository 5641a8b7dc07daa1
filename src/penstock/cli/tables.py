"""Lists of rows: a table on a terminal, aligned columns in a pipe, JSON lines with --json."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.text import escape_line
from .errors import warn
from .output import print_json, print_text
from .run_view import one_line

MAX_CELL_CHARS = 10_000


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, json: bool, empty: str) -> None:
    """Print rows. People see `columns`, a program gets every key; `empty` is the message for no rows."""
    if json:
        for row in rows:
            print_json(row)
    elif not rows:
        warn(empty)
    elif sys.stdout.isatty():
        _table(rows, columns)
    else:
        cells = [list(columns), *([format_cell(row.get(column)) or "-" for column in columns] for row in rows)]
        widths = [max(len(line[n]) for line in cells) for n in range(len(columns))]
        for line in cells:
            print_text("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


def print_object(value: Mapping[str, Any], *, json: bool) -> None:
    """Print one object: a line per key, or JSON."""
    if json:
        print_json(value)
        return
    width = max(map(len, value), default=0)
    for key, item in value.items():
        print_text(f"{escape_line(key):<{width}}  {format_cell(item)}".rstrip())


def print_result(message: str, data: Mapping[str, Any], *, json: bool) -> None:
    """Print the result of an action: a sentence for people, an object for programs."""
    if json:
        print_json(data)
    else:
        print_text(message)


def format_cell(value: Any) -> str:
    """Return a value as one line of text; empty for None and False."""
    if value is None or value is False:
        return ""
    return "yes" if value is True else one_line(value, MAX_CELL_CHARS)


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
        texts = [format_cell(row.get(column)) for column in columns]
        table.add_row(*(Text(text, COLOURS.get(text, "")) for text in texts))
    Console().print(table)
