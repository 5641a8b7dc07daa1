"""A call as it was typed, put as the parser wants it.

Options that every command takes may stand before the command's words, and what a command is given has three names that
people use for one another; only the command's own is in its help.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cyclopts import App

_FLAGS = ("--json", "--debug")
_VALUED = ("--url", "--dir")
_GIVEN = ("--input", "--payload", "--data")


def asked(args: Sequence[str], flag: str) -> bool:
    """Whether a flag was typed, wherever it stands: asked before the call is understood, if it can be."""
    return flag in _options(args) or f"{flag}=true" in _options(args)


class Call(NamedTuple):
    """What was typed, in its parts."""

    words: list[str]  # of the command
    before: list[str]  # common options that stood before or between them
    rest: list[str]

    @property
    def args(self) -> list[str]:
        """As the parser wants it."""
        return [*self.words, *self.before, *self.rest] if self.words else [*self.rest, *self.before]


def arranged(args: Sequence[str], parser: App) -> Call:
    """Finds the command's words; what follows them has the names that the command knows."""
    words: list[str] = []
    before: list[str] = []
    rest = list(args)
    while rest:
        if count := _common(rest[0]):
            before += rest[:count]
            del rest[:count]
        elif not rest[0].startswith("-") and rest[0] in parser:
            parser = parser[rest[0]]
            words.append(rest.pop(0))
        else:
            break
    return Call(words, before, _own_names(rest, parser))


def _common(word: str) -> int:
    """How many words a common option takes up; 0 if it is none."""
    name, equals, _ = word.partition("=")
    if name not in _FLAGS + _VALUED:
        return 0
    return 2 if name in _VALUED and not equals else 1


def _own_names(rest: list[str], command: App) -> list[str]:
    """`--payload` is `--input` to a command that has this one, and so on."""
    options = _options(rest)
    if command.default_command is None or not any(word.partition("=")[0] in _GIVEN for word in options):
        return rest
    known = {name for argument in command.assemble_argument_collection() for name in argument.names}
    own = next((name for name in _GIVEN if name in known), None)
    if own is None:
        return rest
    return [*(_renamed(word, own) for word in options), *rest[len(options) :]]


def _renamed(word: str, own: str) -> str:
    name, equals, value = word.partition("=")
    return f"{own}{equals}{value}" if name in _GIVEN else word


def _options(args: Sequence[str]) -> Sequence[str]:
    """What stands before `--`, after which nothing is an option."""
    return args[: list(args).index("--")] if "--" in args else args
