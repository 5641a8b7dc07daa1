"""Texts that make a slow pattern slow: built from the pattern itself, so that a new pattern needs no new text."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import re._constants as ops  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import penstock

SEARCHES = ("search", "sub", "subn", "findall", "finditer", "split")
MAX_SAMPLES = 12


def modules() -> list[ModuleType]:
    """Return every module of the package."""
    names = [one.name for one in pkgutil.walk_packages(penstock.__path__, "penstock.")]
    return [importlib.import_module(name) for name in names if not name.endswith("__main__")]


def patterns() -> dict[str, tuple[re.Pattern[str], bool]]:
    """Return every pattern of the package by where it is, and whether it is searched for at any position."""
    found: dict[str, tuple[re.Pattern[str], bool]] = {}
    for module in modules():
        source = inspect.getsource(module)
        for name, value in vars(module).items():
            members = value if isinstance(value, tuple | list) else (value,)
            for member in members:
                for one in member if isinstance(member, tuple) else (member,):
                    if isinstance(one, re.Pattern) and isinstance(one.pattern, str):
                        used = set(re.findall(rf"\b{name}\.(\w+)\(", source))
                        found[f"{module.__name__}.{name}: {one.pattern}"] = one, bool(used & {*SEARCHES}) or not used
        for call, text in _inline(source):
            found[f"{module.__name__}: {text}"] = re.compile(text), call in SEARCHES
    return found


def _inline(source: str) -> Iterator[tuple[str, str]]:
    """Yield the patterns that are passed to functions of `re`."""
    if not re.search(r"\bre\.(?!compile)\w+\(", source):  # most modules have none, and to parse a source takes long
        return
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        is_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re" and node.func.attr != "compile"
        if is_re and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
            yield node.func.attr, node.args[0].value


def texts_against(pattern: re.Pattern[str]) -> list[Callable[[int], str]]:
    """Return functions that build a text of a length: beginnings of a match, repeated, and then something else."""
    starts, pumps = _samples(parser.parse(pattern.pattern, pattern.flags))
    starts, pumps = _distinct(starts), _distinct([*pumps, *starts, " ", "a"])
    joined = [f"{pump}{separator}" for pump in pumps for separator in ("-", ".", " ")]
    plans = [(head, pump) for head in ("", *starts) for pump in pumps] + [("", pump) for pump in joined]
    return [_pumped(head, pump, end) for head, pump in plans for end in ("", "\x00")]


def _distinct(samples: list[str]) -> list[str]:
    return list(dict.fromkeys(sample for sample in samples if sample))[:MAX_SAMPLES]


def _pumped(head: str, pump: str, end: str) -> Callable[[int], str]:
    def build(length: int) -> str:
        return (head + pump * (length // len(pump)))[:length] + end

    build.__doc__ = f"{head!r} + {pump!r} * n + {end!r}"
    return build


def _samples(tree: Any) -> tuple[list[str], list[str]]:
    """Return what a match may look like up to each of its repetitions, and what is repeated there."""
    starts: list[str] = []
    pumps: list[str] = []

    def walk(items: Any, before: str) -> str:
        for op, arg in items:
            if op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
                low, _, body = arg
                starts.append(before)
                inner = walk(body, before)[len(before) :]
                pumps.append(inner)
                before += inner * max(low, 1)
            elif op is ops.BRANCH:
                ends = [walk(one, before) for one in arg[1]]
                starts.extend(ends)
                pumps.extend(end[len(before) :] for end in ends)
                before = ends[0]
            elif op is ops.SUBPATTERN:
                before = walk(arg[3], before)
            elif op is ops.ATOMIC_GROUP:
                before = walk(arg, before)
            elif op in (ops.ASSERT, ops.ASSERT_NOT):
                pumps.append(walk(arg[1], before)[len(before) :])
            else:
                before += _character(op, arg)
        return before

    whole = walk(tree, "")
    return [*starts, whole, whole[:-1]], [*pumps, whole, whole[:-1]]


def _character(op: Any, arg: Any) -> str:
    if op is ops.LITERAL:
        return chr(arg)
    if op is ops.NOT_LITERAL or op is ops.ANY:
        return "b" if arg != ord("b") else "c"
    if op is ops.CATEGORY:
        return {ops.CATEGORY_DIGIT: "1", ops.CATEGORY_SPACE: " "}.get(arg, "a")
    if op is not ops.IN:
        return ""  # a position, such as ^
    accepted = re.compile("[" + "".join(map(_in_class, arg)) + "]")
    return next((one for one in "a1-A._ :=?&/\"'\x1b" if accepted.fullmatch(one)), "é")


def _in_class(item: tuple[Any, Any]) -> str:
    op, arg = item
    if op is ops.NEGATE:
        return "^"
    if op is ops.RANGE:
        return f"{re.escape(chr(arg[0]))}-{re.escape(chr(arg[1]))}"
    if op is ops.CATEGORY:
        return {ops.CATEGORY_DIGIT: r"\d", ops.CATEGORY_SPACE: r"\s", ops.CATEGORY_NOT_SPACE: r"\S"}.get(arg, r"\w")
    return re.escape(chr(arg))


URL_STARTS = ("redis://", "redis://h:", "postgresql://u:", "postgresql://h/d?", "sqlite:///", "sqlite:///f?")
PUMPS = (
    *(
        "1",
        "a",
        "A",
        "aA",
        "é",
        ".",
        "-",
        "_",
        " ",
        "\n",
        "\t",
        "/",
        ":",
        "?",
        "&",
        "=",
        "%",
        "@",
        ",",
        "*",
        "#",
        "\\",
        '"',
        "'",
    ),
    *(
        "[",
        "{",
        '{"a":',
        "1h",
        "1.",
        "a.",
        "a,",
        "1-",
        "a=1&",
        "?password",
        "://",
        "eyJaaaaaaaa-",
        "\x1b[",
        "\ud800",
        "\0",
    ),
    *('File "', "bearer ", "password=", "-----BEGIN ", " - at `$", "--[[", "*/1 ", "1-2,"),
)
# Not parsers: they print, read folders and open files, or return every part of a dotted name.
_NO_PARSERS = re.compile(
    r"penstock\.(testing|cli\.commands|stores\.sqlite\.(connection|read_only))\b.*"
    r"|.*\.(print_json|warn|_connect_sqlite|_parents)"
)
_TEXT_TYPES = {"str", "bytes", "Duration", "Key", "Any", "object"}


def parsers() -> dict[str, Callable[[str], object]]:
    """Return the functions of the package that need one argument only, a text."""
    found: dict[str, Callable[[str], object]] = {}
    for module in modules():
        for name, function in vars(module).items():
            where = f"{module.__name__}.{name}"
            is_own = inspect.isfunction(function) and function.__module__ == module.__name__
            if is_own and not _NO_PARSERS.fullmatch(where) and (work := _parser(function)) is not None:
                found[where] = work
    return found


def _parser(function: Callable[..., object]) -> Callable[[str], object] | None:
    parameters = list(inspect.signature(function).parameters.values())
    types = set(str(parameters[0].annotation).split(" | ")) if parameters else set()
    needed = [one for one in parameters[1:] if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    if inspect.iscoroutinefunction(function) or needed or not types & _TEXT_TYPES:
        return None
    if "str" not in types and "bytes" in types:
        return lambda text: function(text.encode("utf-8", "surrogatepass"))
    return function


def texts(name: str) -> list[Callable[[int], str]]:
    """Return functions that build a text of a length, for a parser of URLs or of anything else."""
    starts = ("", *URL_STARTS) if re.search("url|address|connect", name) else ("",)
    return [_pumped(start, pump, "x") for start in starts for pump in PUMPS]
