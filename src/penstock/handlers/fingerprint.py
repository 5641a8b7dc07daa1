"""Telling whether two attempts ran the same code: if a call is gone, was it a deploy or a slip?"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..core.ids import digest

MAX_FUNCTIONS = 200


def compute_fingerprint(fn: Callable[..., Any]) -> str:
    """A hash of a function's code and of what it calls of the same project; empty if it has no code to look at."""
    first = inspect.unwrap(fn)
    if not isinstance(first, FunctionType):
        return ""
    seen = [first]
    for known in seen:
        seen += [called for called in _called(known) if called not in seen]
        if len(seen) > MAX_FUNCTIONS:
            break
    return digest(b"".join(_code(known.__code__) for known in seen))


def _called(fn: FunctionType) -> Iterator[FunctionType]:
    names = list(_names(fn.__code__))
    for name in names:
        found = fn.__globals__.get(name)
        if isinstance(found, FunctionType) and _own(found):
            yield found
        elif isinstance(found, ModuleType):
            members = [vars(found).get(member) for member in names]
            yield from (member for member in members if isinstance(member, FunctionType) and _own(member))


def _own(fn: FunctionType) -> bool:
    """Libraries do not wait for a handler's events; looking into them would take long."""
    return not fn.__code__.co_filename.startswith((sys.prefix, sys.base_prefix, "<frozen"))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names(const)


def _code(code: CodeType) -> bytes:
    parts = [code.co_code, repr(code.co_names).encode()]
    for const in code.co_consts:
        # A set is written in another order by each process.
        shown = sorted(map(repr, const)) if isinstance(const, frozenset) else const
        parts.append(_code(const) if isinstance(const, CodeType) else repr(shown).encode())
    return b"\0".join(parts)
