"""Patches for mutants: replace or rewrite a method, and fail loudly if the class has changed."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any


def replace(owner: Any, name: str, new: Any) -> None:
    """Replace an attribute that must exist. A function must accept the calls that the original accepts.

    Otherwise a suite would catch the mutant by its TypeError, and the mutant would prove nothing.
    """
    assert hasattr(owner, name), f"{owner!r} has no {name!r}: bring the mutant up to date"
    old = getattr(owner, name)
    if callable(old) and callable(new) and not inspect.isclass(old):
        _check_signature(f"{owner!r}.{name}", old, new)
    setattr(owner, name, new)


def _check_signature(what: str, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    parameters = inspect.signature(old).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    keywords = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
    try:
        inspect.signature(new).bind(*positional, **keywords)
        inspect.signature(new).bind(*required)
    except TypeError as problem:
        raise AssertionError(f"the mutant of {what} does not take its arguments: {problem}") from problem


def rewrite(owner: Any, name: str, old: str, new: str) -> None:
    """Replace a part of a method's source, which must contain it exactly once."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{owner!r}.{name} contains {old!r} {source.count(old)} times: update the mutant"
    namespace: dict[str, Any] = {}
    exec(compile(source.replace(old, new), inspect.getfile(function), "exec"), function.__globals__, namespace)
    setattr(owner, name, namespace[name])
