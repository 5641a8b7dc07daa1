"""Arguments as typed, arranged the way the parser expects them.

Common options may come before the command. `--input`, `--payload` and `--data` are accepted for one another; the help
of a command lists only its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cyclopts import App

from ..core.errors import BadArgument
from ..core.text import has_lone_surrogate

_FLAGS = ("--json", "--debug")
_OPTIONS_WITH_VALUE = ("--url", "--dir", "--token")
_INPUT_NAMES = ("--input", "--payload", "--data")


class CommandLine(NamedTuple):
    """The parts of a command line."""

    words: list[str]  # of the command
    before: list[str]  # common options before or between them
    rest: list[str]

    @property
    def args(self) -> list[str]:
        """Return the arguments in the order the parser expects."""
        return [*self.words, *self.before, *self.rest] if self.words else [*self.rest, *self.before]


def check_words(args: Sequence[str]) -> None:
    """Raise for an argument that is not text: the bytes of another encoding, or a NUL character."""
    for n, word in enumerate(args, 1):
        if "\0" in word or has_lone_surrogate(word):  # do not show it: it may be a URL with a password
            raise BadArgument(
                f"argument {n} must be UTF-8 text without NUL characters; check the encoding of the terminal"
            )


def has_flag(args: Sequence[str], flag: str) -> bool:
    """Return whether a flag is present anywhere; works before the command line is parsed."""
    return flag in _before_dashes(args) or f"{flag}=true" in _before_dashes(args)


def split_command_line(args: Sequence[str], parser: App) -> CommandLine:
    """Find the words of the command and rename its input option to the command's own name for it."""
    words: list[str] = []
    before: list[str] = []
    rest = list(args)
    while rest:
        if count := _common_length(rest[0]):
            before += rest[:count]
            del rest[:count]
        elif not rest[0].startswith("-") and rest[0] in parser:
            parser = parser[rest[0]]
            words.append(rest.pop(0))
        else:
            break
    return CommandLine(words, before, _rename_input(rest, parser))


def input_option(command: App) -> str | None:
    """Return the option by which a command takes an input or data, if it takes one."""
    if command.default_command is None:
        return None
    known = {name for argument in command.assemble_argument_collection() for name in argument.names}
    return next((name for name in _INPUT_NAMES if name in known), None)


def _common_length(word: str) -> int:
    """Return how many arguments a common option takes up; 0 if the word is not one."""
    name, equals, _ = word.partition("=")
    if name not in _FLAGS + _OPTIONS_WITH_VALUE:
        return 0
    return 2 if name in _OPTIONS_WITH_VALUE and not equals else 1


def _rename_input(rest: list[str], command: App) -> list[str]:
    options = _before_dashes(rest)
    if not any(word.partition("=")[0] in _INPUT_NAMES for word in options):
        return rest
    own = input_option(command)
    if own is None:
        return rest
    return [*(_rename(word, own) for word in options), *rest[len(options) :]]


def _rename(word: str, own: str) -> str:
    name, equals, value = word.partition("=")
    return f"{own}{equals}{value}" if name in _INPUT_NAMES else word


def _before_dashes(args: Sequence[str]) -> Sequence[str]:
    """Return the arguments before `--`, after which nothing is an option."""
    return args[: list(args).index("--")] if "--" in args else args
