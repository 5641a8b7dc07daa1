"""Fingerprints of handlers.

`compute_fingerprint` covers the code that a function runs: it tells a deploy from non-deterministic code when a replay
skips a call. `fingerprint_definition` covers the source files and the options: it tells workers with different code
apart, and is the same for every version of Python.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

import msgspec

from ..core.ids import digest

MAX_FUNCTIONS = 200
MAX_DEPTH = 12
_NOT_OPTIONS = {"fn", "file", "line"}  # a path differs from machine to machine


def compute_fingerprint(fn: Callable[..., Any]) -> str:
    """Return a hash of a function's code and of the project functions it calls; empty if it has no Python code."""
    first = inspect.unwrap(fn)
    if not isinstance(first, FunctionType):
        return ""
    seen = [first]
    for known in seen:
        seen += [called for called in _find_called(known) if called not in seen]
        if len(seen) > MAX_FUNCTIONS:
            break
    return digest(b"".join(_hash_input(known.__code__) for known in seen))


def _find_called(fn: FunctionType) -> Iterator[FunctionType]:
    names = list(_names(fn.__code__))
    for name in names:
        found = fn.__globals__.get(name)
        if isinstance(found, FunctionType) and _is_project_function(found):
            yield found
        elif isinstance(found, ModuleType):
            members = [vars(found).get(member) for member in names]
            yield from (
                member for member in members if isinstance(member, FunctionType) and _is_project_function(member)
            )


def _is_project_function(fn: FunctionType) -> bool:
    """Return whether a function is not part of a library; reading libraries would take too long."""
    return not fn.__code__.co_filename.startswith((sys.prefix, sys.base_prefix, "<frozen"))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names(const)


def _hash_input(code: CodeType) -> bytes:
    parts = [code.co_code, repr(code.co_names).encode()]
    for const in code.co_consts:
        # The order of a set differs from process to process.
        shown = sorted(map(repr, const)) if isinstance(const, frozenset) else const
        parts.append(_hash_input(const) if isinstance(const, CodeType) else repr(shown).encode())
    return b"\0".join(parts)


def fingerprint_definition(definition: Any, sources: str) -> str:
    """Return a hash of a definition: the hash of its source files, and its options."""
    return digest(f"{sources}\0{_describe(definition)}".encode())


def _describe(value: Any, depth: int = 0) -> str:
    """Return options as text that is the same in every process. Functions and classes count by name: their code is in
    the source files."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if depth > MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        pairs = sorted(f"{_describe(key, depth + 1)}:{_describe(item, depth + 1)}" for key, item in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(_describe(item, depth + 1) for item in value)}]"
    if isinstance(value, set | frozenset):
        return f"[{','.join(sorted(_describe(item, depth + 1) for item in value))}]"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
    elif isinstance(value, msgspec.Struct):
        names = list(value.__struct_fields__)
    else:
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    shown = (name for name in names if name not in _NOT_OPTIONS and not name.startswith("_"))
    return f"{type(value).__name__}({','.join(_describe(getattr(value, name), depth + 1) for name in shown)})"
