"""Asking before something is done that cannot be undone: only of a person at a terminal."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from .errors import warn

NOT_DONE = 1
HELP = "Do not ask first. Without a terminal, as in a script, nothing is asked either."
Yes = Annotated[bool, Parameter(name=("--yes", "-y"), negative="", show_default=False, help=HELP)]


def confirmed(question: str, yes: bool) -> bool:
    """Whether to go on: a script is taken at its word."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    warn("Nothing was done.")
    return False
