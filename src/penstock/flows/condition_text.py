"""The text of a `when`: what diagrams show of a condition."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..core.text import shorten

MAX_CONDITION_CHARS = 300


def show_condition(when: Callable[..., bool] | Mapping[str, Any]) -> str:
    """Return a condition as text: a mapping as JSON, a lambda as its source, a function as its expression or name."""
    if isinstance(when, Mapping):
        return msgspec.json.encode(dict(when)).decode()[:MAX_CONDITION_CHARS]
    source = _find_source(when)
    if source is None:
        return getattr(when, "__name__", None) or shorten(when)
    return source[:MAX_CONDITION_CHARS]


def _find_source(fn: Callable[..., bool]) -> str | None:
    """Return the expression that a lambda evaluates, or a function with only a return; None if there is none."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None:
        return None
    try:
        lines, _ = inspect.findsource(code)
        tree = ast.parse("".join(lines))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    first = code.co_firstlineno
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _first_line(node) == first and node.name == code.co_name:
            body = [one for one in node.body if not _is_docstring(one)]
            if len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None:
                return ast.unparse(body[0].value)
    lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == first]
    starts = {(line, column) for line, _, column, _ in code.co_positions() if line is not None and column is not None}
    for node in lambdas:
        if len(lambdas) == 1 or any(_contains(node.body, place) for place in starts):
            return ast.unparse(node.body)
    return None


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _contains(node: ast.expr, place: tuple[int, int]) -> bool:
    end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
    return (node.lineno, node.col_offset) <= place < end
