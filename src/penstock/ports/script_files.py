"""Worker files in another language: what they define, as data, and the functions of their configs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec

SCRIPT_SUFFIXES = (".ts", ".mts", ".js", ".mjs", ".cjs")


class ScriptError(msgspec.Struct, frozen=True):
    """Why a file cannot be imported."""

    name: str
    message: str
    line: int = 0


class ScriptDescription(msgspec.Struct, frozen=True, rename="camel"):
    """What a worker file exports. A function in `config` is an object `{"$function": path}`."""

    file: str
    sources: Mapping[str, str] = {}  # the file and the project files it imports, with the hash of each
    queue: Any = None
    config: Any = None
    has_config: bool = False
    has_handler: bool = False
    name: str = ""
    error: ScriptError | None = None

    @property
    def version(self) -> str:
        """A hash of the sources: another one after a change."""
        return self.sources.get("", "")


DescribeScripts = Callable[[Sequence[Path]], Sequence[ScriptDescription]]
"""Reads what worker files define. It starts another program only for files that changed."""

Evaluate = Callable[[str, str, Sequence[str | int], Sequence[Any]], Awaitable[Any]]
"""Calls the function at a path of the config of a file, in a version of it, with values."""


class Deferred(Exception):
    """The value comes from a function of another language: a worker evaluates it later."""


class ScriptFunction:
    """A function in the config of a worker file in another language. Its calls must be awaited, in a worker."""

    def __init__(self, file: str, version: str, path: Sequence[str | int], evaluate: Evaluate) -> None:
        self.file = file
        self.version = version
        self.path = tuple(path)
        self.__qualname__ = self.__name__ = ".".join(map(str, self.path))
        self._evaluate = evaluate

    def __call__(self, *values: Any) -> Awaitable[Any]:
        return self._evaluate(self.file, self.version, self.path, [_to_plain(value) for value in values])


def _to_plain(value: Any) -> Any:
    if not is_dataclass(value) or isinstance(value, type):
        return msgspec.to_builtins(value)
    return {_camel(field.name): msgspec.to_builtins(getattr(value, field.name)) for field in fields(value)}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
