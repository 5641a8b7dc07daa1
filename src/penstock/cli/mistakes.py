"""What went wrong, on stderr, in one sentence with its code. A traceback only for those who ask for it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from cyclopts import CycloptsError, UnusedCliTokensError

from ..core.errors import PenstockError

MISTAKE, BUG, INTERRUPTED = 2, 70, 130


class UsageMistake(PenstockError):
    """The command line was called in a way it does not understand."""

    code = "usage"


def shown(command: Callable[[], int], args: list[str]) -> int:
    """Runs a command; what it raises becomes a message and an exit code."""
    debug = "--debug" in args or os.environ.get("PENSTOCK_DEBUG", "") not in ("", "0")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without Unicode is no reason to fail
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever was reading has read enough, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except CycloptsError as problem:
        return _say(f"{_worded(problem, args)} Try: {_help(args)}", UsageMistake.code, MISTAKE, debug)
    except PenstockError as problem:
        return _say(str(problem), problem.code, MISTAKE, debug)
    except Exception as problem:
        hint = "" if debug else "; this should not happen, run it again with --debug to see where"
        return _say(f"{type(problem).__name__}: {problem}{hint}", "internal", BUG, debug)


def warn(message: str) -> None:
    """A line on stderr."""
    print(message, file=sys.stderr, flush=True)


def shown_as(text: str, colour: str) -> str:
    """Text in a colour (an ANSI number) for a terminal, as it is for a pipe."""
    return f"\x1b[{colour}m{text}\x1b[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def _say(message: str, code: str, exit_code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    warn(f"error: {message} [{code}]")
    return exit_code


def _worded(problem: CycloptsError, args: list[str]) -> str:
    """The parser's own words, but for words too many: those are most often a misspelt command."""
    if not isinstance(problem, UnusedCliTokensError) or not problem.unused_tokens:
        return str(problem).strip()
    from ..app.given import near
    from .commands import commands

    group, word = args[0], problem.unused_tokens[0]
    parser = commands()[group]
    below = [name for name in parser if not name.startswith("-")]
    if args[1:2] == [word] and below:
        return f"There is no command {group} {word}: {near(word, below) or 'there are ' + ', '.join(below) + '.'}"
    return f"{' '.join(problem.unused_tokens)} is too much: {' '.join(args)}."


def _help(args: list[str]) -> str:
    from .commands import COMMANDS

    words = [word for word in args[:1] if word in COMMANDS]
    return " ".join(["penstock", *words, "--help"])
