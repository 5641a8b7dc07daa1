"""What went wrong, on stderr, in one sentence with its code, or as JSON. A traceback only for those who ask for it."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cyclopts import CycloptsError, UnknownCommandError, UnusedCliTokensError

from ..core.errors import PenstockError
from .argv import Call, arranged, asked

MISTAKE, BUG, INTERRUPTED = 2, 70, 130


class UsageMistake(PenstockError):
    """The command line was called in a way it does not understand."""

    code = "usage"


class Manner(NamedTuple):
    """How the caller wants to be told: in a sentence or, as a program, in JSON; with a traceback or without."""

    json: bool
    debug: bool


def shown(command: Callable[[], int], args: list[str]) -> int:
    """Runs a command; what it raises becomes a message and an exit code."""
    debug = asked(args, "--debug") or os.environ.get("PENSTOCK_DEBUG", "") not in ("", "0")
    manner = Manner(asked(args, "--json"), debug)
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
        say_error(manner, _worded(problem, args), UsageMistake.code, f"Try: {_help(args)}")
        return MISTAKE
    except PenstockError as problem:
        say_error(manner, str(problem), problem.code)
        return MISTAKE
    except Exception as problem:
        hint = "" if debug else "Run it again with --debug to see where."
        say_error(manner, f"{type(problem).__name__}: {problem}; this should not happen.", "internal", hint)
        return BUG


def say_error(manner: Manner, message: str, code: str, hint: str = "") -> None:
    """The error being handled, on stderr: a sentence with its code, or one line of JSON."""
    if not manner.json:
        if manner.debug:
            traceback.print_exc()
        warn(f"error: {message}{hint and ' '}{hint} [{code}]")
        return
    said = {"code": code, "message": message}
    if hint:
        said["hint"] = hint
    if manner.debug:
        said["traceback"] = traceback.format_exc()
    unicode = (getattr(sys.stderr, "encoding", None) or "").lower().startswith("utf")
    warn(json.dumps({"error": said}, ensure_ascii=not unicode))


def warn(message: str) -> None:
    """A line on stderr."""
    print(message, file=sys.stderr, flush=True)


def shown_as(text: str, colour: str) -> str:
    """Text in a colour (an ANSI number) for a terminal, as it is for a pipe."""
    return f"\x1b[{colour}m{text}\x1b[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def _worded(problem: CycloptsError, args: list[str]) -> str:
    """The parser's own words, but for a command that is misspelt or not in its place."""
    from .commands import commands

    unused = problem.unused_tokens or [""]
    word = unused[0]
    parser = commands()
    call = arranged(args, parser)
    if isinstance(problem, UnknownCommandError) and word.startswith("-"):
        called = " ".join(["penstock", *call.words, "COMMAND", word])
        return f"{word} stands where a command is expected, options come after it: {called}."
    if isinstance(problem, UnusedCliTokensError) and word:
        for name in call.words:
            parser = parser[name]
        return _too_much(unused, call, [name for name in parser if not name.startswith("-")])
    return str(problem).strip()


def _too_much(unused: Sequence[str], call: Call, below: list[str]) -> str:
    """Of words that nobody takes, most are a command's."""
    from ..core.near_match import did_you_mean

    group, word = " ".join(call.words), unused[0]
    if word in below:
        rest = " ".join(one for one in call.rest if one != word)
        return f"{word} is a command, which comes before options: penstock {group} {word} {rest}."
    if word in call.rest[:1] and below:
        return (
            f"There is no command {group} {word}: {did_you_mean(word, below) or 'there are ' + ', '.join(below) + '.'}"
        )
    return f"{' '.join(unused)} is too much: {' '.join(call.args)}."


def _help(args: list[str]) -> str:
    from .commands import commands

    return " ".join(["penstock", *arranged(args, commands()).words[:1], "--help"])
