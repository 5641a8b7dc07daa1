"""Schemas: turns a declared model or JSON schema into a validator.

Accepted: a JSON schema (dict), a pydantic model or anything with `model_validate`, a msgspec Struct, a dataclass, a
TypedDict, or any type msgspec can convert to.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from types import UnionType
from typing import Any

import msgspec

from .errors import DefinitionError, SchemaViolation

Validator = Callable[[Any], Any]
Schema = type[Any] | UnionType | dict[str, Any]
"""A model, any type msgspec can convert to, or a JSON schema."""


def make_validator(schema: Any, what: str) -> Validator:
    """Return a function that returns the converted value, or raises SchemaViolation naming `what`."""
    if isinstance(schema, dict):
        return _json_schema(schema, what)
    if hasattr(schema, "model_validate"):
        return _pydantic(schema, what)
    if isinstance(schema, type) or typing.get_origin(schema) is not None:
        return _msgspec(schema, what)
    raise DefinitionError(
        "a schema must be a JSON schema (dict), a pydantic model, a msgspec Struct, a dataclass or a TypedDict, "
        f"got {schema!r}"
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


def _msgspec(type_: Any, what: str) -> Validator:
    try:
        inspect.signature(msgspec.json.Decoder(type_).decode)
    except TypeError as problem:
        raise DefinitionError(f"cannot validate input against the type {type_!r}: {problem}") from None
    name = getattr(type_, "__name__", str(type_))

    def check(value: Any) -> Any:
        try:
            return msgspec.convert(value, type_, strict=True)
        except msgspec.ValidationError as problem:
            raise SchemaViolation(f"{what} does not match {name}: {problem}") from None

    return check
