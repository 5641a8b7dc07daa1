"""JSON schemas: compile one without loading anything, and refuse those that are no schema or would never end."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, cast

from .errors import DefinitionError
from .text import shorten

MAX_WAYS = 10_000
"""In how many ways the body of a repetition may match, over all its turns."""
_DATA = {"const", "default", "enum", "examples"}  # their values are no schemas
_BY_NAME = {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
_SAMPLES: tuple[Any, ...] = (None, True, 0, "", [], {})


class _Refuse(dict[str, Any]):
    """Loaders of fastjsonschema for every scheme of a URL: none loads anything."""

    def __contains__(self, scheme: object) -> bool:
        return True

    def __missing__(self, scheme: str) -> Callable[[str], NoReturn]:
        return _refuse


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"a $ref must start with '#', got {shorten(uri)}")


def compile_schema(schema: dict[str, Any], what: str, *, from_outside: bool = False) -> Callable[[Any], Any]:
    """Return the validator of fastjsonschema. Raise DefinitionError, naming `what`, if the schema cannot be used.

    One `from_outside`, which did not come with the user's code, must have patterns that match in bounded time.
    """
    import fastjsonschema  # importing it takes 30 ms: only when it is used

    def fail(problem: object) -> DefinitionError:
        return DefinitionError(f"the schema of {what} is not a valid JSON schema: {problem}")

    try:
        problem = next(_find_problems(schema, from_outside), None)
    except RecursionError:
        problem = "it is nested too deeply"
    if problem is not None:
        raise fail(problem)
    try:  # a schema may be anything, and fastjsonschema raises whatever its code runs into; it changes the schema
        validate = fastjsonschema.compile(copy.deepcopy(schema), use_default=False, handlers=_Refuse())
    except Exception as error:
        raise fail(error if str(error) else type(error).__name__) from None
    for sample in _SAMPLES:
        try:
            validate(sample)
        except fastjsonschema.JsonSchemaValueException:
            continue
        except RecursionError:
            raise fail("a $ref leads back to itself without end") from None
        except Exception as error:
            raise fail(f"it cannot validate {sample!r}: {error}") from None
    return cast(Callable[[Any], Any], validate)


def _find_problems(schema: Any, from_outside: bool, path: str = "#") -> Iterator[str]:
    if isinstance(schema, list):
        for n, item in enumerate(schema):
            yield from _find_problems(item, from_outside, f"{path}/{n}")
    if not isinstance(schema, dict):
        return
    ref = schema.get("$ref")
    if isinstance(ref, str) and not ref.startswith("#"):
        yield f"{path}/$ref must start with '#', because nothing is loaded, got {shorten(ref)}"
    if from_outside:
        yield from _find_slow_patterns(schema, path)
    for key, value in schema.items():
        if key in _BY_NAME and isinstance(value, dict):
            for name, item in value.items():
                yield from _find_problems(item, from_outside, f"{path}/{key}/{name}")
        elif key not in _DATA:
            yield from _find_problems(value, from_outside, f"{path}/{key}")


def _find_slow_patterns(schema: dict[str, Any], path: str) -> Iterator[str]:
    named = schema.get("patternProperties")
    patterns = [(f"{path}/pattern", schema.get("pattern"))]
    patterns += [(f"{path}/patternProperties", key) for key in (named if isinstance(named, dict) else ())]
    for place, pattern in patterns:
        if not isinstance(pattern, str):
            continue
        try:
            is_slow = _is_slow(re._parser.parse(pattern))  # type: ignore[attr-defined]
        except (re.error, OverflowError, RecursionError) as error:
            yield f"{place} must be a regular expression, got {shorten(pattern)}: {error}"
            continue
        if is_slow:
            yield (
                f"{place} repeats a group that can itself match in many ways, which may take forever, got "
                f"{shorten(pattern)}; remove the inner or the outer repetition"
            )


def _is_slow(tree: Any) -> bool:
    return any(_is_slow_part(operator, argument) for operator, argument in tree)


def _is_slow_part(operator: Any, argument: Any) -> bool:
    if str(operator).endswith("_REPEAT") and int(argument[1]) > 1 and _count_turns(argument) > MAX_WAYS:
        return True
    return any(map(_is_slow, _bodies(argument)))


def _count_turns(repeat: Any) -> int:
    """Return in how many ways all turns of a repetition can match, without counting how many turns there are."""
    _low, high, body = repeat
    turns: int = _count_ways(body) ** min(int(high), 64)
    return min(turns, MAX_WAYS + 1)


def _count_ways(tree: Any) -> int:
    """Return in how many ways a part of a pattern can match, up to just over MAX_WAYS."""
    ways = 1
    for operator, argument in tree:
        bodies = _bodies(argument)
        if str(operator).endswith("_REPEAT"):
            low, high, _body = argument
            ways *= min(int(high) - int(low) + 1, MAX_WAYS + 1) * _count_turns(argument)
        elif str(operator) == "BRANCH":
            ways *= sum(map(_count_ways, bodies))
        else:
            for body in bodies:
                ways *= _count_ways(body)
        ways = min(ways, MAX_WAYS + 1)
    return ways


def _bodies(argument: Any) -> list[Any]:
    """Return the parts of a pattern in the argument of an operator."""
    if isinstance(argument, re._parser.SubPattern):  # type: ignore[attr-defined]
        return [argument]
    return [body for one in argument for body in _bodies(one)] if isinstance(argument, tuple | list) else []
