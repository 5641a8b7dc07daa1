"""No JSON schema and no value takes long to validate: every keyword at its worst, with 64 KB of schema or of value.

All of it runs in a process that the system kills when it has used 30 s of processor time. It needs about 3 s.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest

from penstock.core.errors import DefinitionError, SchemaViolation
from penstock.core.json_schemas import compile_schema
from penstock.core.schema_steps import LISTS, NAMED, SINGLE

CPU_SECONDS = 30
TEXT = "".join(random.Random(7).choices("ab", k=64_000))
NUMBERS = [0] * 32_000
OBJECT = {f"b{n}": n for n in range(6_000)}


def nest(times: int, wrap: Callable[[Any], Any], value: Any) -> Any:
    return reduce(lambda inner, _: wrap(inner), range(times), value)


def multiply(levels: int, keyword: str = "allOf", end: Any = True) -> dict[str, Any]:
    """Return a schema that applies `end` 2 ** levels times."""
    inner = {str(n): {keyword: [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**inner, str(levels): end}, "$ref": "#/$defs/0"}


def both(keyword: str) -> dict[str, Any]:
    """Return a schema that applies itself twice to the values inside a value."""
    return {"allOf": [{keyword: {"$ref": "#"}}, {keyword: {"$ref": "#"}}], "not": {"const": "no"}}


LIST_60, OBJECT_60 = nest(60, lambda value: [value], 1), nest(60, lambda value: {"a": value}, 1)
WEIGHT = [{"type": "integer"}] * 3_000
SLOW = "[ab]*a[ab]{1000}[^ab]"
OLD = {"$schema": "http://json-schema.org/draft-07/schema#"}
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "pattern": ({"pattern": SLOW}, TEXT),
    "pattern: repeated groups": ({"pattern": "^(a+)+$"}, "a" * 64_000 + "!"),
    "pattern: polynomial": ({"pattern": "a*a*a*a*a*a*b"}, "a" * 64_000),
    "pattern: optional groups": ({"pattern": "(a?)" * 12_000 + "b"}, TEXT),
    "pattern: repeated optional groups": ({"pattern": "(a?){5000}b"}, TEXT),
    "pattern: nested counts": ({"pattern": "(((a{100}){100}){100}){100}"}, TEXT),
    "pattern: look around": ({"pattern": "(?=(a+)+b)a"}, TEXT),
    "pattern: back": ({"pattern": r"(a*)*\1b"}, TEXT),
    "pattern: many": ({"allOf": [{"pattern": f"[ab]*a[ab]{{{n}}}c"} for n in range(100, 400)]}, TEXT),
    "pattern: many unlike ones": ({"allOf": [{"pattern": rf"\p{{L}}{{9}}{n}"} for n in range(2_000)]}, TEXT),
    "patternProperties": ({"patternProperties": {SLOW: True}}, {TEXT: 1}),
    "patternProperties: many": ({"patternProperties": {f"a{n}$": True for n in range(250)}}, OBJECT),
    "format": ({"allOf": [{"format": "idn-hostname"}] * 2_000}, "ß." * 20_000),
    "format: regex": ({"format": "regex"}, "(" * 30_000 + "a" + ")" * 30_000),
    "enum: objects": ({"items": {"enum": [{"a": n} for n in range(5_000)]}}, [{"a": -1}] * 8_000),
    "enum: in a branch": ({"items": {"anyOf": [{"enum": [[n] for n in range(6_000)]}, True]}}, [[-1]] * 8_000),
    "enum: mixed": ({"items": {"anyOf": [{"enum": [*range(3_000), "a", []]}, True]}}, [-1] * 16_000),
    "const": ({"items": {"anyOf": [{"const": NUMBERS}, True]}}, [NUMBERS] * 2),
    "uniqueItems": ({"uniqueItems": True}, [{"a": n} for n in range(6_000)]),
    "required": ({"items": {"required": list(OBJECT)}}, [OBJECT] * 2),
    "dependentRequired": ({"dependentRequired": {name: list(OBJECT)[:9] for name in OBJECT}}, OBJECT),
    "multipleOf": ({"items": {"multipleOf": 1e-308}}, [1.7e308] * 8_000),
    "allOf": ({"items": {"allOf": WEIGHT}}, NUMBERS),
    "anyOf": ({"items": {"anyOf": [{"type": "string"}] * 3_000}}, NUMBERS),
    "oneOf": ({"items": {"oneOf": WEIGHT}}, NUMBERS),
    "not": ({"items": {"allOf": [{"not": {"type": "string"}}] * 2_000}}, NUMBERS),
    "prefixItems": ({"prefixItems": WEIGHT}, NUMBERS),
    "contains": ({"allOf": [{"contains": {"const": 0}, "minContains": 32_000}] * 2_000}, NUMBERS),
    "$ref: multiplied": (multiply(40), 1),
    "$ref: multiplied in a branch": (multiply(18, "anyOf", {"type": "integer"}), "x"),
    "$ref: errors with copies": (multiply(12, "oneOf", {"type": "string"}), NUMBERS),
    "$ref: itself": ({"$ref": "#"}, 1),
    "$ref: a long chain": (multiply(1) | {"allOf": [{"$ref": "#/$defs/0"}], "$defs": {
        "1": True, **{str(n): {"$ref": f"#/$defs/{n - 1}"} for n in range(2, 1_500)}, "0": {"$ref": "#/$defs/1499"}}}, 1),
    "$dynamicRef": ({"$dynamicAnchor": "n", "allOf": [{"items": {"$dynamicRef": "#n"}}] * 2}, LIST_60),
    "definitions": ({"definitions": {"a": both("items")}, "$ref": "#/definitions/a"}, LIST_60),
    "dependencies": ({**OLD, "dependencies": {"a": {"$ref": "#"}}}, {"a": 1}),
    "additionalItems": ({**OLD, "items": [True], "additionalItems": {"allOf": WEIGHT}}, NUMBERS),
    "if": (nest(40, lambda one: {"if": one, "then": one, "else": one}, True), 1),
    "branches on the same names": (
        {"anyOf": [{"type": "integer"}, *({"properties": {"op": {"const": op}, "a": {"$ref": "#"}}} for op in "xyz")]},
        nest(60, lambda value: {"op": "z", "a": value}, "x"),
    ),
    "schemas inside": ({"allOf": [{}] * 6_000}, 1),
    "levels": (nest(5_000, lambda one: {"items": one}, {}), LIST_60),
}  # fmt: skip
for _keyword in ("items", "contains"):
    CASES[f"{_keyword}: multiplied"] = both(_keyword), LIST_60
for _keyword in ("additionalProperties", "propertyNames"):
    CASES[f"{_keyword}: multiplied"] = both(_keyword), OBJECT_60
for _keyword in ("properties", "patternProperties", "dependentSchemas"):
    CASES[f"{_keyword}: multiplied"] = {"allOf": [{_keyword: {"a": {"$ref": "#"}}}] * 2}, OBJECT_60
for _keyword, _value in (("unevaluatedProperties", OBJECT), ("unevaluatedItems", NUMBERS)):
    CASES[f"{_keyword}: nested"] = nest(20, lambda one, key=_keyword: {"anyOf": [one], key: True}, True), _value  # type: ignore[misc]
for _keyword in ("then", "else"):
    CASES[f"{_keyword}: many"] = {"items": {"allOf": [{"if": _keyword == "then", _keyword: {}}] * 2_000}}, NUMBERS


def try_all() -> dict[str, str]:
    """Return for each case how it ended."""
    ends = {}
    for name, (schema, value) in CASES.items():
        try:
            compile_schema(schema, "it")(value)
            ends[name] = "valid"
        except (DefinitionError, SchemaViolation) as error:
            ends[name] = str(error)
    return ends


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit for processor time")
def test_every_keyword_at_its_worst() -> None:
    program = textwrap.dedent(
        f"""
        import threading, sys
        sys.path.insert(0, {__file__.rpartition("/")[0]!r})
        import test_schema_work
        threading.stack_size(512 * 1024)  # that of a thread on macOS
        thread = threading.Thread(target=lambda: print(len(test_schema_work.try_all())))
        thread.start(), thread.join()
        """
    )
    limits = (CPU_SECONDS, CPU_SECONDS)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, limits),
    )
    assert (done.returncode, done.stdout) == (0, f"{len(CASES)}\n"), done.stderr


def test_every_keyword_with_schemas_has_a_case() -> None:
    names = {case.partition(":")[0] for case in CASES}
    assert {*LISTS, *NAMED, *SINGLE} - {"$defs"} <= names


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        (multiply(13, "allOf", {"enum": [[n] for n in range(99)]}), [1], "takes too many steps"),
        (multiply(9, "allOf", {"type": "array"}), [1], None),
        (both("items"), nest(5, lambda value: [value], 1), None),
        (both("items"), LIST_60, "takes too many steps"),
        ({"pattern": SLOW}, TEXT, "takes too many steps"),
        ({"pattern": SLOW}, TEXT[:500], "does not match"),
        ({"anyOf": [{"items": {"type": "integer"}}, {"type": "null"}]}, [*range(9_000), "a"], "in too many places"),
    ],
)
def test_a_value_is_refused_only_if_it_takes_too_long(schema: dict[str, Any], value: Any, words: str | None) -> None:
    try:
        compile_schema(schema, "it")(value)
    except (SchemaViolation, DefinitionError) as error:
        assert words is not None, error
        assert words in str(error)
    else:
        assert words is None
