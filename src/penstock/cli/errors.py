"""Errors on stderr: one sentence with its code, or one JSON object. Tracebacks only with --debug."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cyclopts import App, CycloptsError, MissingArgumentError, UnknownCommandError, UnusedCliTokensError

from ..core.errors import PenstockError
from ..core.text import escape_json, escape_line, escape_lines
from .argv import CommandLine, has_flag, input_option, split_command_line

EXIT_OK, EXIT_FAILED, EXIT_ERROR, EXIT_BUG, EXIT_INTERRUPTED = 0, 1, 2, 70, 130


class UsageError(PenstockError):
    """The command line was called with arguments it does not understand."""

    code = "usage"


class ErrorFormat(NamedTuple):
    """How to print errors: as JSON or as a sentence, with a traceback or without."""

    json: bool
    debug: bool


def report_errors(command: Callable[[], int], args: list[str]) -> int:
    """Run a command; turn an exception into a message and an exit code."""
    debug = has_flag(args, "--debug") or os.environ.get("PENSTOCK_DEBUG", "") not in ("", "0")
    format = ErrorFormat(has_flag(args, "--json"), debug)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without Unicode is no reason to fail
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has stopped reading, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except CycloptsError as problem:
        print_error(format, _describe(problem, args), UsageError.code, f"Try: {_help_command(args)}")
        return EXIT_ERROR
    except PenstockError as problem:
        print_error(format, str(problem), problem.code)
        return EXIT_ERROR
    except Exception as problem:
        hint = "" if debug else "Run the command again with --debug for a traceback."
        message = f"{type(problem).__name__}: {problem}; this is a bug in Penstock, please report it."
        print_error(format, message, "internal", hint)
        return EXIT_BUG


def print_error(format: ErrorFormat, message: str, code: str, hint: str = "") -> None:
    """Print the error being handled on stderr: a sentence with its code, or one line of JSON."""
    if not format.json:
        if format.debug:
            warn(traceback.format_exc().rstrip())
        warn(escape_line(f"error: {message}{hint and ' '}{hint} [{code}]"))
        return
    error = {"code": code, "message": message}
    if hint:
        error["hint"] = hint
    if format.debug:
        error["traceback"] = traceback.format_exc()
    unicode = (getattr(sys.stderr, "encoding", None) or "").lower().startswith("utf")
    warn(escape_json(json.dumps({"error": error}, ensure_ascii=not unicode)))


def warn(message: str) -> None:
    """Print a line on stderr. Control characters are escaped: the text may come from anyone."""
    print(escape_lines(message), file=sys.stderr, flush=True)


def colour_text(text: str, colour: str) -> str:
    """Colour text (by ANSI number) for a terminal; leave it as it is for a pipe."""
    is_coloured = colour and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return f"\x1b[{colour}m{text}\x1b[0m" if is_coloured else text


def _describe(problem: CycloptsError, args: list[str]) -> str:
    """Return the parser's own message, or a better one for unknown and misplaced arguments."""
    from .command_table import build_parser

    unused = problem.unused_tokens or [""]
    word = unused[0]
    parser = build_parser()
    call = split_command_line(args, parser)
    if isinstance(problem, UnknownCommandError) and word.startswith("-"):
        usage = " ".join(["penstock", *call.words, "COMMAND", word])
        return f"expected a command, got the option {word}; options come after the command: {usage}."
    if isinstance(problem, UnknownCommandError) and call.words and "list" in parser[call.words[0]]:
        return _describe_unknown(word, " ".join(call.words), parser[call.words[0]])
    if isinstance(problem, UnusedCliTokensError) and word:
        for name in call.words:
            parser = parser[name]
        return _describe_unused(unused, call, parser)
    if isinstance(problem, MissingArgumentError) and problem.argument is not None:
        return _describe_missing(problem.keyword or problem.argument.name, problem.command_chain or ())
    return str(problem).strip()


def _describe_missing(name: str, command: Sequence[str]) -> str:
    if name.startswith("-"):
        return f"the option {name} needs a value."
    return f"`{' '.join(['penstock', *command])}` needs {name}."


def _describe_unknown(word: str, group: str, command: App) -> str:
    """Explain a word that is no command of a group: most are a misspelt one, or what to list."""
    from ..core.near_match import near_matches

    near = near_matches(word, [name for name in command if not name.startswith("-")])
    meant = [*map(repr, near), f"'{group} list {word}'"]
    return f"no command named '{group} {word}'; did you mean {' or '.join(meant)}?"


def _describe_unused(unused: Sequence[str], call: CommandLine, command: App) -> str:
    """Explain arguments that no parameter takes: most are a misspelt command or an input without its option."""
    from ..core.near_match import did_you_mean

    group, word = " ".join(call.words), unused[0]
    below = [name for name in command if not name.startswith("-")]
    if word in below:
        rest = " ".join(one for one in call.rest if one != word)
        return f"the command {word} must come before its options: penstock {group} {word} {rest}."
    if word in call.rest[:1] and below:
        hint = did_you_mean(word, below) or f"commands: {', '.join(below)}."
        return f"no command named '{group} {word}'; {hint}"
    text = f"unexpected argument {' '.join(unused)!r}"
    option = input_option(command)
    return f"{text}; did you mean {option}?" if option is not None and not word.startswith("-") else f"{text}."


def _help_command(args: list[str]) -> str:
    from .command_table import build_parser

    return " ".join(["penstock", *split_command_line(args, build_parser()).words[:1], "--help"])
