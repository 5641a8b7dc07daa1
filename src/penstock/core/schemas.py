"""Schemas: turns a declared model or JSON schema into a validator.

Accepted: a JSON schema (dict), a pydantic model or anything with `model_validate`, a msgspec Struct, a dataclass, a
TypedDict, or any type msgspec can convert to.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable
from types import UnionType
from typing import Any

import msgspec
import msgspec.inspect

from .errors import DefinitionError, SchemaViolation
from .near_match import did_you_mean
from .text import shorten

UnknownFields = typing.Literal["refuse", "ignore"]
"""What happens to a field of an input that its dataclass does not have."""
Validator = Callable[[Any], Any]
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


def _json_schema(schema: dict[str, Any], what: str) -> Validator:
    import fastjsonschema  # importing it takes 30 ms: only when it is used

    try:
        validate = fastjsonschema.compile(schema, use_default=False)
    except fastjsonschema.JsonSchemaDefinitionException as problem:
        raise DefinitionError(f"the schema of {what} is not a valid JSON schema: {problem}") from None

    def check(value: Any) -> Any:
        try:
            validate(value)
        except fastjsonschema.JsonSchemaValueException as problem:
            path = ".".join(str(part) for part in problem.path)
            raise SchemaViolation(f"{what} does not match its schema at {path}: {problem.message}") from None
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
                detail = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'value'}: {e['msg']}" for e in errors())
            raise SchemaViolation(f"{what} does not match {model.__name__}: {detail}") from None

    return check


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
            raise SchemaViolation(f"{what} does not match {name}: {problem}") from None
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


def _describe_unknown(key: str, known: Iterable[str], what: str, path: tuple[str, ...]) -> str:
    names = list(known)
    hint = did_you_mean(key, names) or f"known fields: {', '.join(names) or 'none'}"
    place = f" at {'.'.join(path)}" if path else ""
    return f"{what} has an unknown field {key!r}{place}; {hint} (unknown_fields='ignore' accepts it)"
