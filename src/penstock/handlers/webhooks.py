"""Standing webhooks: addresses that start a flow or emit an event each time they are called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..core.errors import BadArgument, DefinitionError, PayloadError, PenstockError, SettingError
from ..core.events import BadEmit, check_kind
from ..core.ids import BadId, check_name
from ..core.options import rename_keys
from ..core.payload import pack, to_plain
from ..core.schemas import make_validator
from ..core.text import any_of, shorten
from ..durable.trigger_signatures import check_signed

METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
KEY_HEADER = "idempotency-key"
_PATH = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")
MAX_PATH_CHARS = 200


class Webhook(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A standing webhook: its path, and the flow it starts or the kind of event it emits."""

    path: str
    flow: str | None = None
    event: str | None = None
    methods: tuple[str, ...] = ("POST",)
    schema: dict[str, Any] | None = None  # JSON schema of the body
    signed: str | None = None  # environment variable with the secret
    key_header: str = KEY_HEADER
    declared: bool = False  # in the code, not in the store
    unreadable: str | None = None  # why the rest is missing: its record is damaged


_decode = msgspec.json.Decoder(Webhook).decode


def decode_webhook(data: bytes) -> Webhook:
    """Decode a webhook of the store. Raise ValidationError if it is none that `check_webhook` accepts."""
    found = _decode(data)
    try:
        return check_webhook(
            found.path,
            flow=found.flow,
            event=found.event,
            method=found.methods,
            schema=found.schema,
            signed=found.signed,
            key_header=found.key_header,
        )
    except PenstockError as problem:
        raise msgspec.ValidationError(str(problem)) from None


def check_webhook(
    path: Any,
    *,
    flow: str | None = None,
    event: str | None = None,
    method: str | Sequence[str] = "POST",
    schema: Mapping[str, Any] | None = None,
    signed: str | None = None,
    key_header: str = KEY_HEADER,
    declared: bool = False,
) -> Webhook:
    """Return a webhook, or raise BadArgument for what is wrong with it."""
    name = path.strip("/") if isinstance(path, str) else ""
    # A client resolves '.' and '..' before it calls, so no call would reach such a path.
    if not _PATH.fullmatch(name) or len(name) > MAX_PATH_CHARS or {".", ".."} & set(name.split("/")):
        raise BadArgument(
            "the path of a webhook must have letters, digits, '.', '_', '-' and '/', such as 'shop/orders', and no "
            f"part that is '.' or '..', got {shorten(path)}"
        )
    if (flow is None) == (event is None):
        raise BadArgument(f"webhook {name!r} must either start a flow or emit an event; pass flow= or event=")
    try:
        check_name(flow, "flow") if flow is not None else check_kind(str(event))
    except (BadId, BadEmit) as problem:
        raise BadArgument(f"webhook {name!r}: {problem}") from None
    methods = _read_methods(method)
    if not methods or not set(methods) <= set(METHODS):
        raise BadArgument(f"method must be {any_of(METHODS)}, or a list of them, got {shorten(method)}")
    if not isinstance(key_header, str) or not _HEADER.fullmatch(key_header):
        raise BadArgument(f"key_header must be the name of a header, such as 'X-Request-Id', got {shorten(key_header)}")
    check_signed(signed, "any")
    if schema is not None and not isinstance(schema, Mapping):
        raise BadArgument(f"schema must be a JSON schema, such as {{'type': 'object'}}, got {shorten(schema)}")
    plain = to_plain(dict(schema), f"the schema of webhook {name!r}") if schema is not None else None
    if plain is not None:
        pack(plain, f"the schema of webhook {name!r}")
        _check_schema(plain, name, declared)
    return Webhook(name, flow, event, methods, plain, signed, key_header.lower(), declared)


def _check_schema(schema: dict[str, Any], name: str, declared: bool) -> None:
    try:
        make_validator(schema, f"the body for webhook {name!r}")
    except DefinitionError as problem:
        if declared:  # in the code: the place of the definition is added to the error
            raise
        raise BadArgument(str(problem)) from None


def _read_methods(method: Any) -> tuple[str, ...]:
    names = (method,) if isinstance(method, str) else method if isinstance(method, list | tuple | set) else ()
    return tuple(sorted({one.upper() if isinstance(one, str) else "" for one in names}))


_KEYS = {"path", "event", "method", "schema", "signed", "key_header"}


def read_webhook(value: Any, flow: str, where: str) -> Webhook | None:
    """Read `webhook=` of a flow: a path, or a mapping of `path`, `method`, `schema`, `signed`, `keyHeader` and `event`.
    With an event, calls emit it; otherwise they start the flow."""
    if value is None:
        return None
    try:
        options: Any = rename_keys(value, _KEYS, "webhook") if isinstance(value, Mapping) else {"path": value}
        target: Any = {} if "event" in options else {"flow": flow}
        return check_webhook(options.pop("path", None), **options, **target, declared=True)
    except (BadArgument, SettingError, PayloadError, DefinitionError) as problem:
        raise DefinitionError(f"webhook: {problem}", where=where) from None
