"""Schemas: turns a declared model or JSON schema into a validator.

Accepted: a JSON schema (dict), a pydantic model or anything with `model_validate`, a msgspec Struct, a dataclass, a
TypedDict, or any type msgspec can convert to.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any

import msgspec
import msgspec.inspect

from .errors import DefinitionError, SchemaViolation
from .json_schemas import compile_schema
from .near_match import did_you_mean, hint_at_misspelt
from .text import escape_line, shorten

UnknownFields = typing.Literal["refuse", "ignore"]
"""What happens to a field of an input that its dataclass does not have."""
Validator = Callable[[Any], Any]
MAX_DETAIL_CHARS = 1_000
Schema = type[Any] | UnionType | dict[str, Any]
"""A model, any type msgspec can convert to, or a JSON schema."""


def make_validator(schema: Any, what: str, *, unknown_fields: UnknownFields = "refuse") -> Validator:
    """Return a function that returns the converted value, or raises SchemaViolation naming `what`.

    `unknown_fields` is about dataclasses; other models and JSON schemas decide for themselves.
    """
    if isinstance(schema, dict):
        return _json_schema(schema, what)
    if hasattr(schema, "model_validate"):
        return _pydantic(schema, what)
    if isinstance(schema, type) or typing.get_origin(schema) is not None:
        return _msgspec(schema, what, unknown_fields)
    raise DefinitionError(
        "a schema must be a JSON schema (dict), a pydantic model, a msgspec Struct, a dataclass or a TypedDict, "
        f"got {shorten(schema)}"
    )


def _show(problem: object) -> str:
    """Return a message of another library on one line; it may have a whole text of the value."""
    text = escape_line(str(problem)[: MAX_DETAIL_CHARS + 1])
    return text if len(text) <= MAX_DETAIL_CHARS else f"{text[:MAX_DETAIL_CHARS]}…"


def needs_validation(annotation: Any) -> bool:
    """Return whether an input annotation is validated; `dict`, `Any` and builtin types are not."""
    if not isinstance(annotation, type):
        return False
    return (
        hasattr(annotation, "model_validate")
        or issubclass(annotation, msgspec.Struct)
        or dataclasses.is_dataclass(annotation)
        or typing.is_typeddict(annotation)
    )


def convert_result(value: Any, type_: Any, what: str) -> Any:
    """Return a recorded result as a value of its type; raise SchemaViolation, naming `what`, if it does not match."""
    if type_ in (None, Any, type(None)):
        return value
    if needs_validation(type_):
        return make_validator(type_, what, unknown_fields="ignore")(value)
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as problem:
        raise SchemaViolation(f"{what} does not match {getattr(type_, '__name__', type_)}: {_show(problem)}") from None
    except TypeError:  # a type that only its own library converts
        return value


def to_json_schema(schema: Any) -> dict[str, Any] | None:
    """Return a declared schema as JSON schema, for the registry."""
    if isinstance(schema, dict):
        return schema
    if hasattr(schema, "model_json_schema"):
        return dict(schema.model_json_schema())
    try:
        return msgspec.json.schema(schema)
    except TypeError:
        return None


def example_text(schema: Any) -> str:
    """Return JSON that shows the shape of a JSON schema: `{"ok": true}`, with `…` for text."""
    return msgspec.json.encode(_example(schema if isinstance(schema, dict) else {})).decode()


def _example(schema: dict[str, Any]) -> Any:
    if "const" in schema or schema.get("enum"):
        return schema.get("const", (schema.get("enum") or [None])[0])
    types = schema.get("type")
    kind = types[0] if isinstance(types, list) and types else types
    properties = schema.get("properties")
    if kind == "object" or isinstance(properties, dict):
        known = properties if isinstance(properties, dict) else {}
        names = schema.get("required") or list(known)
        return {name: _example(known[name] if isinstance(known.get(name), dict) else {}) for name in names}
    return {"boolean": True, "integer": 0, "number": 0, "null": None, "array": []}.get(str(kind), "…")


def _json_schema(schema: dict[str, Any], what: str) -> Validator:
    check_value = compile_schema(schema, what)

    def check(value: Any) -> Any:
        check_value(value)
        return value

    return check


def _pydantic(model: Any, what: str) -> Validator:
    def check(value: Any) -> Any:
        try:
            return model.model_validate(value)
        except ValueError as problem:
            errors = getattr(problem, "errors", None)
            detail = str(problem)
            if errors is not None:
                detail = "; ".join(
                    f"field {'.'.join(map(str, e['loc']))!r}: {_describe(e, model)}"
                    if e["loc"]
                    else _describe(e, model)
                    for e in errors()
                )
            raise SchemaViolation(f"{what} does not match {model.__name__}: {_show(detail)}") from None

    return check


def _describe(error: Mapping[str, Any], model: Any) -> str:
    """Return the message of a pydantic error, with a hint at a misspelt field."""
    place, found = error["loc"], error.get("input")
    if error.get("type") != "missing" or not place or not isinstance(found, dict):
        return str(error["msg"])
    known = model.model_fields if len(place) == 1 else ()
    return str(error["msg"]) + hint_at_misspelt([str(place[-1])], found, known)


def _msgspec(type_: Any, what: str, unknown_fields: UnknownFields) -> Validator:
    try:
        inspect.signature(msgspec.json.Decoder(type_).decode)
    except TypeError as problem:
        raise DefinitionError(f"cannot validate input against the type {type_!r}: {problem}") from None
    name = getattr(type_, "__name__", str(type_))
    info = msgspec.inspect.type_info(type_) if unknown_fields == "refuse" else None

    def check(value: Any) -> Any:
        try:
            converted = msgspec.convert(value, type_, strict=True)
        except msgspec.ValidationError as problem:
            hint = _find_misspelt(value, msgspec.inspect.type_info(type_)) if "missing required" in str(problem) else ""
            raise SchemaViolation(f"{what} does not match {name}: {_show(problem)}{hint}") from None
        if info is not None:
            _check_fields(value, info, what)
        return converted

    return check


def _check_fields(value: Any, info: msgspec.inspect.Type, what: str, path: tuple[str, ...] = ()) -> None:
    """Raise SchemaViolation for a field that a dataclass does not have. msgspec ignores it."""
    match info:
        case msgspec.inspect.DataclassType(fields=fields) if isinstance(value, dict):
            known = {field.encode_name: field.type for field in fields}
            for key, item in value.items():
                if key not in known:
                    raise SchemaViolation(_describe_unknown(key, known, what, path))
                _check_fields(item, known[key], what, (*path, key))
        case msgspec.inspect.ListType(item_type=inner) | msgspec.inspect.VarTupleType(item_type=inner):
            for n, item in enumerate(value if isinstance(value, list) else ()):
                _check_fields(item, inner, what, (*path, str(n)))
        case msgspec.inspect.DictType(value_type=inner) if isinstance(value, dict):
            for key, item in value.items():
                _check_fields(item, inner, what, (*path, key))
        case msgspec.inspect.UnionType(types=types):
            for one in types:  # at most one of them is an object: msgspec could not tell two apart
                _check_fields(value, one, what, path)


def _find_misspelt(value: Any, info: msgspec.inspect.Type) -> str:
    """Return a hint at the first field of an object that is most likely a misspelt required one."""
    match info:
        case (
            msgspec.inspect.DataclassType(fields=fields)
            | msgspec.inspect.StructType(fields=fields)
            | msgspec.inspect.TypedDictType(fields=fields)
        ) if isinstance(value, dict):
            known = {field.encode_name: field.type for field in fields}
            missing = [field.encode_name for field in fields if field.required and field.encode_name not in value]
            inner = (_find_misspelt(value[name], type_) for name, type_ in known.items() if name in value)
            return hint_at_misspelt(missing, value, known) or next(filter(None, inner), "")
        case msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item):
            return (
                next(filter(None, (_find_misspelt(one, item) for one in value)), "") if isinstance(value, list) else ""
            )
        case msgspec.inspect.UnionType(types=types):
            return next(filter(None, (_find_misspelt(value, one) for one in types)), "")
    return ""


def _describe_unknown(key: str, known: Iterable[str], what: str, path: tuple[str, ...]) -> str:
    names = list(known)
    hint = did_you_mean(key, names) or f"known fields: {', '.join(names) or 'none'}"
    place = f" at {'.'.join(path)}" if path else ""
    return f"{what} has an unknown field {key!r}{place}; {hint} (to accept unknown fields, set unknown_fields='ignore')"
