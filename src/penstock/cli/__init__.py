"""The command line: one module for each command in `commands`; `command_table` lists them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence


def run_program() -> int:
    """Run one command as a program. Python's garbage collector never looks at what the imports have made, and the
    program ends without it: it would be a third of the time of a short command."""
    gc.disable()  # until the command is imported
    try:
        return main()
    finally:
        gc.freeze()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 the run did not complete, 2 an error to fix."""
    from .errors import report_errors  # deferred: a program that only draws runs does not need the commands

    args = list(sys.argv[1:] if argv is None else argv)
    return report_errors(lambda: _call(args), args)


def _call(args: list[str]) -> int:
    from ..telemetry.logging import LOGGER, ROOT, restore_loggers
    from .argv import check_words, split_command_line
    from .command_table import build_parser

    check_words(args)
    with restore_loggers(ROOT, LOGGER):
        call = split_command_line(args, build_parser())
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        code = build_parser(*call.words[:1])(call.args)
    return code if isinstance(code, int) else 0
