"""The command line, one file a command; `commands` has the table of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and gives its exit code: 0 done, 1 the run did not complete, 2 something to mend."""
    from .errors import shown  # a program that only draws runs does not need the commands

    args = list(sys.argv[1:] if argv is None else argv)
    return shown(lambda: _call(args), args)


def _call(args: list[str]) -> int:
    from .argv import arranged
    from .commands import commands
    from .logs import logged

    with logged():
        parser = commands()
        code = parser(arranged(args, parser).args)
    return code if isinstance(code, int) else 0
