"""Ask before something that cannot be undone; only at a terminal."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from .errors import warn

HELP = "Do not ask for confirmation. Without a terminal, as in a script, nothing is asked either."
Yes = Annotated[bool, Parameter(name=("--yes", "-y"), negative="", show_default=False, help=HELP)]


def confirm(question: str, yes: bool) -> bool:
    """Return whether to go on. A script is never asked."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    warn("Nothing was done.")
    return False
