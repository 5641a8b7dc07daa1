"""Which flows a handler calls or starts, as far as its source shows it, for diagrams.

Found are `ctx.call`, `ctx.call_many` and `ctx.start` in the handler itself, with a name as text or with a function that
the handler's module knows. A name that is computed, or a call in another function, is not found.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .decorators import FlowDefinition, read_definitions

_METHODS = {"call": "calls", "call_many": "calls many", "start": "starts"}


class CalledFlow(NamedTuple):
    """A flow that a handler calls or starts."""

    flow: str
    label: str


def find_called_flows(fn: Callable[..., Any]) -> list[CalledFlow]:
    """Return the flows that a handler calls or starts, in the order of its source; nothing without a source."""
    fn = inspect.unwrap(fn)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(fn)))
        names = {**fn.__globals__, **inspect.getclosurevars(fn).nonlocals}
    except (OSError, TypeError, SyntaxError, ValueError):  # typed at a prompt, or not a Python function
        return []
    found = sorted(_read_calls(tree), key=lambda call: (call.lineno, call.col_offset))
    flows = [(_read_flow(call, names), _METHODS[_method(call)]) for call in found]
    return list(dict.fromkeys(CalledFlow(flow, label) for flow, label in flows if flow is not None))


def _read_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of methods of `ctx`, and of `ctx.branch`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _method(node) not in _METHODS:
            continue
        assert isinstance(node.func, ast.Attribute)
        owner = node.func.value
        if isinstance(owner, ast.Attribute) and owner.attr == "branch":
            owner = owner.value
        if isinstance(owner, ast.Name) and owner.id in ("ctx", "context"):
            yield node


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _read_flow(call: ast.Call, names: dict[str, Any]) -> str | None:
    """Return the name of the flow that a call is given."""
    given = [*call.args[:1], *(one.value for one in call.keywords if one.arg == "flow")]
    match given[0] if given else None:
        case ast.Constant(value=str(name)):
            return name
        case ast.Name(id=name):
            return _name_of(names.get(name))
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return _name_of(getattr(names.get(module), name, None))
    return None


def _name_of(value: Any) -> str | None:
    if isinstance(value, str):  # a constant of the module
        return value
    definitions = read_definitions(value) if callable(value) else ()
    return next((one.name for one in definitions if isinstance(one, FlowDefinition)), None)
