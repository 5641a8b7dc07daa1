"""JSON schemas: compile one without loading anything, and refuse what takes too long, as a schema or as a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from .errors import DefinitionError, SchemaViolation
from .near_match import hint_at_misspelt
from .schema_steps import MAX_REPORT, EndlessReference, StepCounter, TooManySteps, subschemas
from .text import escape_line, shorten

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

MAX_SUBSCHEMAS = 5_000
"""Compiling nests at most that deep, with 100 bytes of the stack of a thread for each."""
MAX_DEPTH = 64
PATTERN_BYTES = (16_384, 131_072, 1_048_576)
"""Sizes of compiled patterns: a pattern gets the first one that it fits in, and is refused if it fits in none."""
MAX_ALL_PATTERNS_BYTES = 4 * 1024 * 1024
BYTES_PER_STEP = 128
MAX_DETAIL_CHARS = 300
_IT = "\ue000"  # stands for the value in messages of the validator: a character for private use
_OLD = {
    "additionalItems": "items",
    "dependencies": "dependentRequired or dependentSchemas",
    "$recursiveRef": "$dynamicRef",
}


def compile_schema(schema: dict[str, Any], what: str) -> Callable[[Any], None]:
    """Return a function that raises SchemaViolation, naming `what`, for a value that does not match the schema.

    Raise DefinitionError if the schema cannot be used. Patterns match in linear time, and a value whose validation
    would take more than a limit of steps is refused, so no schema and no value blocks the process.
    """
    import jsonschema_rs  # importing it takes 50 ms: only when it is used

    problem = next(_find_problems(schema), None)
    if problem is not None:
        raise _fail(what, problem)
    sizes = _measure_patterns(schema, what)
    options = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES[-1])
    try:  # a schema may be anything
        validator = jsonschema_rs.validator_for(
            schema, validate_formats=True, pattern_options=options, offline=True, mask=_IT
        )
    except Exception as error:
        raise _fail(what, _first_line(error)) from None
    steps = StepCounter(schema, sizes)
    try:
        steps.check()
    except EndlessReference:
        raise _fail(what, "a $ref leads back to itself without end") from None
    except TooManySteps:
        raise _fail(what, "its references multiply: it takes too many steps for any value; use fewer of them") from None

    def check(value: Any) -> None:
        try:
            if not steps.is_small:
                steps.count(value)
            if not validator.is_valid(value):
                raise SchemaViolation(f"{what} does not match its schema: {_explain(schema, validator, steps, value)}")
        except TooManySteps:
            raise SchemaViolation(
                f"{what} cannot be validated: the check against its schema takes too many steps. Make the value "
                "smaller, or simplify the schema: fewer references, shorter patterns, smaller enums"
            ) from None
        except (ValueError, TypeError, RecursionError) as problem:  # what no JSON has
            raise SchemaViolation(f"{what} cannot be validated: {_first_line(problem)}") from None

    return check


def _fail(what: str, problem: str) -> DefinitionError:
    return DefinitionError(f"the schema of {what} is not a valid JSON schema: {problem}")


def _first_line(problem: Exception) -> str:
    text = str(problem).partition("\n")[0] or type(problem).__name__
    return escape_line(text.replace(_IT, "it")[:MAX_DETAIL_CHARS])


def _walk(schema: Any) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield every schema inside a schema, with its path and depth."""
    todo: list[tuple[str, int, Any]] = [("#", 0, schema)]
    while todo:
        path, depth, one = todo.pop()
        if isinstance(one, dict):
            yield path, depth, one
            todo += [(f"{path}/{place}", depth + 1, inner) for place, inner in subschemas(one)]


def _find_problems(schema: dict[str, Any]) -> Iterator[str]:
    for n, (path, depth, one) in enumerate(_walk(schema)):
        if depth > MAX_DEPTH:
            yield f"it is nested deeper than {MAX_DEPTH} levels"
        if n >= MAX_SUBSCHEMAS:
            yield f"it has more than {MAX_SUBSCHEMAS:,} schemas inside"
        path = shorten(path, 200)[1:-1]
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            ref = one.get(key, "#")
            if isinstance(ref, str) and not ref.startswith("#"):
                yield f"{path}/{key} must start with '#', because nothing is loaded, got {shorten(ref)}"
        for key in ("$id", "id"):
            if one is not schema and isinstance(one.get(key), str) and not one[key].startswith("#"):
                yield f"{path}/{key} is possible in the outermost schema only, got {shorten(one[key])}"
        if "$schema" not in schema:
            yield from _find_old_words(one, path)


def _find_old_words(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Yield the keywords that draft 2020-12 does not have: a validator ignores what it does not know."""
    if isinstance(schema.get("items"), list):
        yield f"{path}/items must be a schema, got a list; use prefixItems, or name the draft in $schema"
    for key, new in _OLD.items():
        if key in schema:
            yield f"{path}/{key} is not in draft 2020-12; use {new}, or name the draft in $schema"


def _measure_patterns(schema: dict[str, Any], what: str) -> dict[str, int]:
    """Return for each pattern how many steps it takes for each character of a text. All of them take linear time."""
    sizes: dict[str, int] = {}
    for path, _, one in _walk(schema):
        named = one.get("patternProperties")
        patterns = [("pattern", one.get("pattern")), *(("patternProperties", key) for key in _names(named))]
        for key, pattern in patterns:
            if isinstance(pattern, str) and pattern not in sizes:
                sizes[pattern] = _measure_pattern(pattern, f"{shorten(path, 200)[1:-1]}/{key}", what) // BYTES_PER_STEP
                if sum(sizes.values()) * BYTES_PER_STEP > MAX_ALL_PATTERNS_BYTES:
                    raise _fail(
                        what, f"its patterns need more than {MAX_ALL_PATTERNS_BYTES:,} bytes; remove some of them"
                    )
    return sizes


def _names(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def _measure_pattern(pattern: str, place: str, what: str) -> int:
    from jsonschema_rs import FancyRegexOptions, RegexOptions, validator_for

    for size in PATTERN_BYTES:
        try:
            validator_for({"pattern": pattern}, pattern_options=RegexOptions(size_limit=size), offline=True)
        except ValueError:
            continue
        return size
    try:
        validator_for(
            {"pattern": pattern}, pattern_options=FancyRegexOptions(size_limit=PATTERN_BYTES[-1]), offline=True
        )
    except ValueError:
        raise _fail(what, f"{place} must be a regular expression, of less than 1 MB, got {shorten(pattern)}") from None
    raise _fail(
        what,
        f"{place} must not look ahead, behind or back at a group, which may take forever, got {shorten(pattern)}; "
        "check that in the handler",
    )


def _explain(schema: dict[str, Any], validator: Validator, steps: StepCounter, value: Any) -> str:
    """Return why a value does not match, and where."""
    if steps.count(value) > MAX_REPORT:
        return "the value matches no branch of an anyOf or oneOf, in too many places to name them"
    try:
        validator.validate(value)
    except ValueError as problem:
        return _describe(schema, cast("ValidationError", problem))
    raise AssertionError("the value was refused a moment ago")


def _describe(schema: dict[str, Any], problem: ValidationError) -> str:
    place = _format_path(problem.instance_path) or "the value"
    found, name = problem.instance, getattr(problem.kind, "property", None)
    if name is not None and isinstance(found, dict):
        known = _find(schema, problem.schema_path[:-1])
        names = known.get("properties") if isinstance(known, dict) else None
        hint = hint_at_misspelt([name], found, names if isinstance(names, dict) else ())
        return f"{place} must have the field {shorten(name)}{hint}"
    if problem.kind.name == "falseSchema":
        return f"{place} is not allowed, got {shorten(found)}"
    if problem.message.startswith(_IT):
        return f"{place}{_cut(problem.message[1:])}, got {shorten(found)}"
    return f"{place}: {_cut(problem.message.replace(_IT, shorten(found)))}"


def _cut(text: str) -> str:
    text = escape_line(text[: MAX_DETAIL_CHARS + 1])
    return text if len(text) <= MAX_DETAIL_CHARS else f"{text[:MAX_DETAIL_CHARS]}…"


def _format_path(path: list[str | int]) -> str:
    shown = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path[:8]).removeprefix(".")
    shown = f"the value{shown}" if shown.startswith("[") else shown
    return escape_line(f"{shown[:MAX_DETAIL_CHARS]}{'…' if len(path) > 8 else ''}")


def _find(schema: Any, path: list[str | int]) -> Any:
    for part in path:
        try:
            schema = schema[part]
        except (KeyError, IndexError, TypeError):
            return None
    return schema
