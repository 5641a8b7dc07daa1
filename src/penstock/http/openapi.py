"""The OpenAPI 3.1 document, from the endpoints and their types. msgspec makes the schemas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from .. import __version__
from .dispatch import JSON
from .endpoints import Body, Endpoint, Query

REF = "#/components/schemas/{name}"
_ERRORS = {
    400: "The request is invalid.",
    401: "There is no valid token.",
    403: "The caller's role does not allow it.",
    404: "There is no such thing.",
    405: "The path has other methods.",
    409: "The state of the thing does not allow it.",
    410: "The trigger has expired or was cancelled.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The input does not match its schema.",
    429: "Too many wrong tokens came from this address.",
    503: "The store does not answer.",
    504: "The result did not come in time.",
}


class ErrorDetail(msgspec.Struct, omit_defaults=True):
    """What was wrong: a stable code and a sentence."""

    code: str
    message: str
    hint: str | None = None
    detail: Any = None


class ErrorBody(msgspec.Struct):
    """The body of every error."""

    error: ErrorDetail


def build_openapi(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the document that describes these endpoints."""
    types: list[Any] = [ErrorBody]
    for endpoint in endpoints:
        types += [kind for _, kind in filter(None, (endpoint.find(Query), endpoint.find(Body)))]
        if not endpoint.is_stream:
            types.append(endpoint.returns)
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    by_type = {_key(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = re.sub(r"{(\w+):\w+}", r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, by_type, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": __version__, "description": "Durable flows and jobs for Python."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(endpoint: Endpoint, schemas: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    summary, _, description = endpoint.summary.partition("\n")
    operation: dict[str, Any] = {
        "operationId": endpoint.function.__name__,
        "summary": summary,
        "tags": [endpoint.tag],
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in endpoint.path_names
        ],
        "responses": _responses(endpoint, schemas),
    }
    if description.strip():
        operation["description"] = description.strip()
    if endpoint.is_public:
        operation["security"] = []
    else:
        operation["x-role"] = endpoint.role
    if (query := endpoint.find(Query)) is not None:
        operation["parameters"] += _query_parameters(query[1], schemas, components)
    if (body := endpoint.find(Body)) is not None:
        has_required = any(info.required for info in msgspec.structs.fields(body[1]))
        operation["requestBody"] = {
            "required": has_required,
            "content": {JSON: {"schema": schemas[_key(body[1])]}},
        }
    elif endpoint.body_media != JSON:
        operation["requestBody"] = {"required": True, "content": {endpoint.body_media: {"schema": {"type": "string"}}}}
    return operation


def _responses(endpoint: Endpoint, schemas: dict[Any, Any]) -> dict[str, Any]:
    if endpoint.is_stream:
        content: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
    else:
        content = {endpoint.media.partition(";")[0]: {"schema": schemas[_key(endpoint.returns)]}}
    error = {"application/json": {"schema": {"$ref": REF.format(name="ErrorBody")}}}
    texts = {**_ERRORS, **endpoint.responses}
    existing = {"200": {"description": "The key was used before.", "content": content}} if endpoint.may_exist else {}
    return (
        existing
        | {str(endpoint.status): {"description": "Done.", "content": content}}
        | {str(status): {"description": text, "content": error} for status, text in sorted(texts.items())}
    )


def _query_parameters(kind: type[msgspec.Struct], schemas: dict[Any, Any], components: dict[str, Any]) -> list[Any]:
    name = schemas[_key(kind)]["$ref"].rpartition("/")[2]
    schema = components[name]
    return [
        {"name": field, "in": "query", "required": field in schema.get("required", ()), "schema": properties}
        for field, properties in schema.get("properties", {}).items()
    ]


def _key(kind: Any) -> Any:
    try:
        hash(kind)
    except TypeError:
        return repr(kind)
    return kind
