"""How many steps the validation of a value takes at most: through `$ref`, subschemas of one value multiply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

MAX_STEPS = 20_000_000
"""A step takes the validator about 20 ns."""
MAX_VISITS = 100_000
"""How many pairs of a subschema and a part of the value are looked at, which takes Python about 1 µs for each."""
MAX_FRAMES = 300
"""How deep validation may nest: each level takes the validator up to 400 bytes of the stack of a thread."""
MAX_REPORT = 5_000
"""In how many places an `anyOf` or `oneOf` may fail for its error to be built; each place takes up to 50 µs."""
SMALL = 300
"""Steps for each byte of a value that need no count: 64 KB of it take less than MAX_STEPS."""

LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
NAMED = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
SINGLE = (
    "additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
BRANCHES = ("anyOf", "oneOf")
_ELEMENT = 64  # comparing one with an element of an enum takes as long as this number of steps
_ANCHORS = ("$anchor", "$dynamicAnchor", "$id", "id")


class TooManySteps(Exception):
    """Validation may take more steps than it is allowed."""


class EndlessReference(TooManySteps):
    """A reference leads back to its own schema, at the same value."""


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the schemas directly in a schema, each with its place: `properties/name`."""
    for key, value in schema.items():
        if key in NAMED and isinstance(value, dict):
            yield from ((f"{key}/{name}", one) for name, one in value.items())
        elif (key in LISTS or key == "items") and isinstance(value, list):
            yield from ((f"{key}/{n}", one) for n, one in enumerate(value))
        elif key in SINGLE:
            yield key, value


def follow(root: dict[str, Any], ref: str) -> Any:
    """Return what a `$ref` that starts with '#' is about: a pointer or an anchor. None if it is not there."""
    name = unquote(ref[1:])
    if name and not name.startswith("/"):
        return _find_anchor(root, name)
    found: Any = root
    for part in name.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(part)] if part.isdigit() and len(part) < 10 and int(part) < len(found) else None
        else:
            found = found.get(part) if isinstance(found, dict) else None
    return found


def _find_anchor(schema: Any, name: str) -> Any:
    if not isinstance(schema, dict):
        return None
    if any(schema.get(key) in (name, f"#{name}") for key in _ANCHORS):
        return schema
    return next((found for _, one in subschemas(schema) if (found := _find_anchor(one, name)) is not None), None)


class StepCounter:
    """Counts the steps of one schema. `sizes` has the size of each compiled pattern, in steps for each character."""

    def __init__(self, root: dict[str, Any], sizes: Mapping[str, int]) -> None:
        self._root = root
        self._sizes = sizes
        self._refs: dict[str, Any] = {}
        self._own: dict[int, tuple[int, int]] = {}
        self.is_small = self._is_small()

    def count(self, value: Any) -> int:
        """Return in how many places a value may fail. Raise TooManySteps if its validation may take too long."""
        return _Count(self).count(self._root, value)

    def check(self) -> None:
        """Raise TooManySteps if the schema takes too many for any value, such as null, at any of its schemas."""
        count, todo = _Count(self), [self._root]
        while todo:
            schema = todo.pop()
            if isinstance(schema, dict):
                count.count(schema, None)
                todo += [one for _, one in subschemas(schema)]

    def in_place(self, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the schemas that a schema applies to the value itself, each with its keyword."""
        for key in ("allOf", *BRANCHES):
            yield from ((key, one) for one in _list(schema, key))
        yield from ((key, schema[key]) for key in ("not", "if", "then", "else") if key in schema)
        for key in ("dependentSchemas", "dependencies"):
            yield from ((key, one) for one in _map(schema, key).values())
        yield from (("$ref", one) for one in self.references(schema))

    def references(self, schema: dict[str, Any]) -> Iterator[Any]:
        """Yield the schemas that a schema refers to."""
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(ref := schema.get(key), str):
                if ref not in self._refs:
                    self._refs[ref] = follow(self._root, ref)
                yield self._refs[ref]

    def own_steps(self, schema: dict[str, Any]) -> tuple[int, int]:
        """Return the steps of a schema's own keywords: for each value, and for each character of a text."""
        if (found := self._own.get(id(schema))) is None:
            lists = [*_map(schema, "dependentRequired").values(), *_map(schema, "dependencies").values()]
            steps = 1 + len(_list(schema, "required")) + sum(len(one) for one in lists if isinstance(one, list))
            steps += _count_comparisons(_list(schema, "enum")) + _ELEMENT * (_size(schema.get("const")) - 1)
            text = self._sizes.get(schema.get("pattern", ""), 0) + (8 if "format" in schema else 0)
            found = self._own[id(schema)] = steps, text
        return found

    def name_steps(self, schema: dict[str, Any]) -> int:
        """Return the steps for each character of a property's name."""
        return sum(self._sizes.get(one, 0) for one in _map(schema, "patternProperties"))

    def _is_small(self) -> bool:
        """Return whether all subschemas, with each reference in full, take few steps: then no value takes too many."""
        left, todo = SMALL, [self._root]
        while todo and left >= 0:
            schema = todo.pop()
            left -= 1
            if isinstance(schema, dict):
                left -= sum(self.own_steps(schema)) + self.name_steps(schema)
                left -= SMALL if is_evaluated_again(schema) else 0
                todo += [one for place, one in subschemas(schema) if not place.startswith(("$defs", "definitions"))]
                todo += self.references(schema)
        return left >= 0


class _Count:
    """One count. What a subschema does with a part of the value is looked at once, however often it happens."""

    def __init__(self, counter: StepCounter) -> None:
        self._counter = counter
        self._known: dict[tuple[int, int], _Steps] = {}
        self._sizes: dict[int, int] = {}
        self._kept: list[Any] = []  # names of properties: an id is that of one object only while the object lives

    def count(self, schema: dict[str, Any], value: Any) -> int:
        return self._steps(schema, value, 0).report

    def _steps(self, schema: Any, value: Any, depth: int) -> _Steps:
        if not isinstance(schema, dict):
            return _ONE
        key = (id(schema), id(value))
        if (found := self._known.get(key)) is not None:
            if found is _NONE:
                raise EndlessReference
            return found
        if depth > MAX_FRAMES or len(self._known) > MAX_VISITS:
            raise TooManySteps
        self._known[key] = _NONE  # not finished
        found = self._known[key] = self._sum(schema, value, depth + 1)
        if found.steps > MAX_STEPS:
            raise TooManySteps
        return found

    def _sum(self, schema: dict[str, Any], value: Any, depth: int) -> _Steps:
        steps, for_character = self._counter.own_steps(schema)
        steps += for_character * len(value) if isinstance(value, str) else 0
        places, report, branches = self._size(value), 0, 0
        for key, one in self._counter.in_place(schema):
            found = self._steps(one, value, depth)
            steps, places, report = steps + found.steps, places + found.places, max(report, found.report)
            branches += found.places if key in BRANCHES else 0
        steps *= 3 if is_evaluated_again(schema) else 1
        for one, child in self._children(schema, value):
            found = self._steps(one, child, depth)
            steps, places, report = steps + found.steps, places + found.places, max(report, found.report)
        if isinstance(value, dict) and (for_name := self._counter.name_steps(schema)):
            steps += for_name * sum(map(len, value))
        return _Steps(steps, places, max(report, branches))

    def _children(self, schema: dict[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
        if isinstance(value, dict):
            named, every = _map(schema, "properties"), [*_map(schema, "patternProperties").values()]
            every += [schema[key] for key in ("additionalProperties", "unevaluatedProperties") if key in schema]
            for name, child in value.items():
                yield from ((one, child) for one in ([named[name], *every] if name in named else every))
            if "propertyNames" in schema:
                self._kept.append(names := list(value))
                yield from ((schema["propertyNames"], name) for name in names)
        elif isinstance(value, list):
            items = schema.get("items", True)
            first = items if isinstance(items, list) else _list(schema, "prefixItems")
            yield from zip(first, value, strict=False)
            every = [schema[key] for key in ("contains", "additionalItems", "unevaluatedItems") if key in schema]
            every += [items] if isinstance(items, dict) else []
            yield from ((one, child) for child in value for one in every)

    def _size(self, value: Any) -> int:
        """Return how much an error of a value weighs: it has a copy of the value."""
        if (found := self._sizes.get(id(value))) is None:
            found = self._sizes[id(value)] = 1 + _size(value) // 200
        return found


class _Steps(NamedTuple):
    """What a subschema takes for a part of the value, at most."""

    steps: int
    places: int
    """In how many places it may fail."""
    report: int
    """The places of its largest `anyOf` or `oneOf`: the error of one has those of all its branches."""


_NONE, _ONE = _Steps(0, 0, 0), _Steps(1, 1, 0)


def is_evaluated_again(schema: dict[str, Any]) -> bool:
    """Return whether a schema asks each other one beside it again which names or items it has evaluated."""
    return "unevaluatedProperties" in schema or "unevaluatedItems" in schema


def _count_comparisons(enum: list[Any]) -> int:
    """Return the steps of an `enum`: it is a lookup if all elements are texts or all are numbers."""
    is_lookup = all(type(one) is str for one in enum) or all(type(one) in (int, float) for one in enum)
    return 0 if is_lookup else _ELEMENT * _size(enum)


def _map(schema: dict[str, Any], key: str) -> dict[str, Any]:
    found = schema.get(key)
    return found if isinstance(found, dict) else {}


def _list(schema: dict[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _size(value: Any) -> int:
    """Return of how many parts a value consists."""
    if isinstance(value, dict):
        return 1 + sum(map(_size, value.values()))
    return 1 + sum(map(_size, value)) if isinstance(value, list) else 1
