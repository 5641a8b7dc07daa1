"""Options several commands take."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

COMMON = Group("Common options", sort_key=90)
_STARTING = Group("Options of the run", sort_key=10)


@Parameter(name="*", group=COMMON)
@dataclass(frozen=True)
class Common:
    """Where the code and the data are, and how to answer."""

    dir: Annotated[str | None, Parameter(help="Folder of the worker files; else PENSTOCK_DIR, else 'workers'.")] = None
    url: Annotated[str | None, Parameter(help="The store; else PENSTOCK_URL, else the file .penstock/penstock.db.")] = (
        None
    )
    json: Annotated[bool, Parameter(negative="", show_default=False, help="Answer in JSON.")] = False
    debug: Annotated[
        bool, Parameter(negative="", show_default=False, help="Show a traceback with an error; also PENSTOCK_DEBUG=1.")
    ] = False

    @property
    def place(self) -> str:
        """The options that make another command look at the same code and data."""
        given = (("--dir", self.dir), ("--url", self.url))
        return "".join(f" {name} {shlex.quote(value)}" for name, value in given if value is not None)


@Parameter(name="*", group=_STARTING)
@dataclass(frozen=True)
class Starting:
    """What a new run is given."""

    input: Annotated[
        str | None,
        Parameter(allow_leading_hyphen=True, help="The input as JSON; @FILE reads a file, - standard input."),
    ] = None
    key: Annotated[
        str | None, Parameter(help="Idempotency key, which becomes the run's id: the same key starts one run only.")
    ] = None
    delay: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Begin later: 30s, 1h30m.")] = None
    priority: Annotated[int, Parameter(help="Lower goes first.")] = 0
    tag: Annotated[
        list[str] | None, Parameter(negative="", help="A label name=value kept with the run; may be repeated.")
    ] = None


USUAL_PLACE = Common()
PLAIN_START = Starting()
