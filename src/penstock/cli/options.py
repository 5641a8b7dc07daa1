"""Options that several commands take."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

_COMMON = Group("Common options", sort_key=90)
_RUN = Group("Run options", sort_key=10)
CORRELATION_HELP = "Stored with all events; 'runs list --correlation-id' finds what belongs together."
KEY_HELP = "Idempotency key; becomes the new run's id. The same key starts only one run."
PRIORITY_HELP = "Lower numbers go first."
ORDER_KEY_HELP = "Jobs with the same order key run one at a time, in order."
DELAY_HELP = "Start after this time: 30s, 1h30m."


@Parameter(name="*", group=_COMMON)
@dataclass(frozen=True)
class CommonOptions:
    """Where the code and the data are, and how to answer."""

    dir: Annotated[str | None, Parameter(help="Folder of the worker files; default PENSTOCK_DIR, then 'workers'.")] = (
        None
    )
    url: Annotated[
        str | None,
        Parameter(help="URL of the store, or of a server (http://…); default PENSTOCK_URL."),
    ] = None
    token: Annotated[
        str | None, Parameter(help="Token for --url http://…, the address of a server; default PENSTOCK_TOKEN.")
    ] = None
    json: Annotated[bool, Parameter(negative="", show_default=False, help="Print JSON; lists as JSON Lines.")] = False
    debug: Annotated[
        bool, Parameter(negative="", show_default=False, help="Print a traceback with errors; also PENSTOCK_DEBUG=1.")
    ] = False

    @property
    def flags(self) -> str:
        """Return the options that make another command use the same code and store."""
        options = (("--dir", self.dir), ("--url", self.url))
        return "".join(f" {name} {shlex.quote(value)}" for name, value in options if value is not None)


@Parameter(name="*", group=_RUN)
@dataclass(frozen=True)
class RunOptions:
    """Options of a new run."""

    input: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help="Input as JSON; @FILE reads a file, - standard input.")
    ] = None
    key: Annotated[str | None, Parameter(help=KEY_HELP)] = None
    delay: Annotated[str | None, Parameter(allow_leading_hyphen=True, help=DELAY_HELP)] = None
    priority: Annotated[int, Parameter(help=PRIORITY_HELP)] = 0
    tag: Annotated[
        list[str] | None, Parameter(negative="", help="Tag name=value to store with the run; may be repeated.")
    ] = None
    correlation_id: Annotated[str | None, Parameter(help=CORRELATION_HELP)] = None


COMMON_DEFAULTS = CommonOptions()
RUN_DEFAULTS = RunOptions()
