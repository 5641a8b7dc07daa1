"""Attributes of runs: names and values that a flow declares, read from the input of each run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..core.errors import BadArgument, DefinitionError
from ..core.text import check_text, shorten

MAX_ATTRIBUTES = 20
MAX_VALUE_CHARS = 500
AttributesOption = Mapping[str, str] | Callable[[Any], Mapping[str, Any]]
"""Names with dotted paths into the input, or a function of the input that returns names and values."""


def check_attributes(value: Any, where: str) -> AttributesOption | None:
    """Check `attributes` of a flow."""
    if value is None or (callable(value) and not inspect.iscoroutinefunction(value)):
        return value  # type: ignore[no-any-return]
    if not isinstance(value, Mapping) or not all(
        isinstance(part, str) and part for pair in value.items() for part in pair
    ):
        raise DefinitionError(
            'attributes must be names with paths into the input, such as {"customer": "customer.id"}, or a `def` '
            f"function that takes the input and returns names and values, got {shorten(value)}",
            where=where,
        )
    if len(value) > MAX_ATTRIBUTES:
        raise DefinitionError(f"attributes must have at most {MAX_ATTRIBUTES} names, got {len(value)}", where=where)
    return dict(value)


def read_attributes(option: AttributesOption | None, input: Any, convert: Callable[[Any], Any]) -> dict[str, str]:
    """Return the attributes of an input. A function receives the input as the handler does; a path without a value
    adds nothing."""
    if option is None:
        return {}
    if callable(option):
        found = option(convert(input))
        if not isinstance(found, Mapping):
            raise BadArgument(f"the function of attributes must return a mapping, got {shorten(found)}")
        return attribute_texts(found)
    return attribute_texts({name: _value_at(input, path) for name, path in option.items()})


def attribute_texts(values: Mapping[str, Any], what: str = "attributes") -> dict[str, str]:
    """Return attributes as text: 7 and "7" are the same. None adds nothing; other values raise BadArgument."""
    if not isinstance(values, Mapping):
        raise BadArgument(
            f"{what} must be a mapping of names to values, such as {{'customer': 7}}, got {shorten(values)}"
        )
    if len(values) > MAX_ATTRIBUTES:
        raise BadArgument(f"{what} must have at most {MAX_ATTRIBUTES} names, got {len(values)}")
    return {
        check_text(name, f"a name in {what}", MAX_VALUE_CHARS): _text(value, f"{what}[{shorten(name)}]")
        for name, value in values.items()
        if value is not None
    }


def _text(value: Any, what: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return check_text(value, what, MAX_VALUE_CHARS)
    if isinstance(value, int | float):
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    raise BadArgument(f"{what} must be a string, a number or a boolean, got {shorten(value)}")


def _value_at(input: Any, path: str) -> Any:
    for part in path.split("."):
        input = input.get(part) if isinstance(input, Mapping) else None
    return input
