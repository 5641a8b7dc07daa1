"""Fingerprints of handler code: they tell a deploy from non-deterministic code when a replay skips a call."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..core.ids import digest

MAX_FUNCTIONS = 200


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
