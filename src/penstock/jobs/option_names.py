"""Decorators that are given an option they do not have, or none where there must be: told in our words."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ..core.errors import DefinitionError
from .option_values import check_keys

D = TypeVar("D", bound=Callable[..., Any])


def names_options(decorator: D) -> D:
    """The same decorator, whose DefinitionError has the line it stands at where Python would raise a TypeError."""
    parameters = inspect.signature(decorator).parameters.values()
    known = {parameter.name for parameter in parameters}
    leading = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    name = decorator.__name__
    usual = f'@{name}("name")' if leading else f"@{name}()"

    @wraps(decorator)
    def checked(*args: Any, **options: Any) -> Any:
        frame = sys._getframe(1)
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        check_keys(options, known, f"@{name}", where)
        if args and callable(args[0]) and not leading:
            raise DefinitionError(f"@{name} stands without parentheses: write {usual}", where=where)
        if len(args) > len(leading):
            raise DefinitionError(
                f"@{name} is given {args[len(leading)]!r} without its name: write {usual}, and options as name=value",
                where=where,
            )
        if len(args) < len(leading) and leading[0] not in options:
            raise DefinitionError(f"@{name} is given no name: write {usual}", where=where)
        return decorator(*args, **options)

    return checked  # type: ignore[return-value]
