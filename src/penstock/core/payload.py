"""Payload rules: which values can be stored, so that every store and every language reads back what was written.

Strict JSON, at most 64 KB and 64 levels deep; no NaN or Infinity, no lone surrogates, no duplicate keys, no integers
beyond 2^53 - 1.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date, datetime, time
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

from .errors import NotJSON, PayloadTooDeep, PayloadTooLarge, UnreadableJob
from .references import KEY, MARK
from .text import escape_line, has_lone_surrogate, shorten

MAX_PAYLOAD_BYTES = 64 * 1024
MAX_LIFTED_BYTES = 2**30  # of a value, if there is a blob store
MAX_DEPTH = 64
MAX_KEY_SHOWN = 60
MAX_PATH_SHOWN = 80
MAX_INTEGER = 2**53 - 1

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()
NULL = b"null"
_lifted_limit: ContextVar[int] = ContextVar("penstock_lifted_limit", default=0)
Path = str | tuple[Any, Any]
"""Where a value is: the name of the whole, or the path of the outer value with a key or an index."""
# What decoding stored values may raise: any program can write to a queue.
DECODE_ERRORS = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)


def pack(value: Any, what: str = "payload", limit: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Encode a value as JSON; an error names the path of the part that has no JSON form."""
    if value is None:
        return NULL
    data = _encoder.encode(to_plain(value, what))
    if len(data) > limit and not fits(len(data), limit):
        raise PayloadTooLarge(
            f"{what} is {len(data):,} bytes; the limit is {limit:,}. Set blob_url, which lifts the limit, or store "
            "large data elsewhere and pass a reference"
        )
    if MARK in data:
        raise NotJSON(f"{what} has the key {KEY!r}, which is reserved for references to large values; rename the key")
    return data


def fits(size: int, limit: int = MAX_PAYLOAD_BYTES) -> bool:
    """Return whether a value may have this size. Inside `lifted_limits`, the limit is that of a blob store."""
    return size <= max(limit, _lifted_limit.get())


def lift_limits_here() -> None:
    """Lift the limits for the rest of the current task."""
    _lifted_limit.set(MAX_LIFTED_BYTES)


@contextmanager
def lifted_limits() -> Iterator[None]:
    """Accept values larger than the limits inside a `with` block: the store of the App keeps them as blobs."""
    token = _lifted_limit.set(MAX_LIFTED_BYTES)
    try:
        yield
    finally:
        _lifted_limit.reset(token)


def pack_inline(value: Any, what: str = "payload") -> bytes:
    """Encode a value that stays in the store, whatever its size: state, for example."""
    data = pack(value, what, MAX_LIFTED_BYTES)
    if len(data) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(
            f"{what} is {len(data):,} bytes; the limit is {MAX_PAYLOAD_BYTES:,}. Put large data into ctx.blob and "
            "store its key"
        )
    return data


def unpack(data: bytes) -> Any:
    """Decode bytes that `pack` encoded."""
    return _decoder.decode(data)


def unpack_stored(data: bytes, what: str) -> Any:
    """Decode stored bytes that any program may have written. Raise UnreadableJob if they are not JSON.

    The error does not quote them: they may hold secrets."""
    try:
        return _decoder.decode(data)
    except DECODE_ERRORS as problem:
        raise UnreadableJob(f"{what} must be valid JSON, got {describe_stored(data)}: {problem}") from None


def show_stored(data: bytes) -> Any:
    """Return stored bytes decoded, or as text if they are not JSON."""
    try:
        return _decoder.decode(data)
    except DECODE_ERRORS:
        return data.decode(errors="replace") if isinstance(data, bytes) else str(data)


def describe_stored(data: Any) -> str:
    """Return the type and the size of a stored value."""
    return f"{len(data):,} bytes" if isinstance(data, bytes) else f"a value of type {type(data).__name__}"


def parse_json(text: str | bytes, what: str = "payload", limit: int = MAX_PAYLOAD_BYTES) -> Any:
    """Parse JSON from outside, and refuse what Python's own parser accepts but other languages do not."""
    size = len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else len(text)
    if not fits(size, limit):
        raise PayloadTooLarge(f"{what} is {size:,} bytes; the limit is {limit:,}")
    _check_depth(text, what)
    try:
        # Python's own parser also accepts bytes in UTF-16 and UTF-32.
        document = text if isinstance(text, str) else text.decode("utf-8")
        value = json.loads(document, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, UnicodeDecodeError) as problem:
        raise NotJSON(f"{what} is not valid JSON: {problem}") from None
    return to_plain(value, what)


def to_plain(value: Any, path: Path = "payload", depth: int = 0) -> Any:
    """Convert a value to dicts, lists, strings, numbers, booleans and None."""
    kind = type(value)
    if kind is str:
        if not value.isascii():
            _check_text(value, path)
        return value
    if kind is bool or value is None:
        return value
    if kind is int:
        return _integer(value, path)
    if kind is float:
        return _number(value, path)
    if kind is dict:
        if depth >= MAX_DEPTH:
            raise _too_deep(path)
        return {_key(key, path): to_plain(item, (path, key), depth + 1) for key, item in value.items()}
    if kind is list or kind is tuple:
        if depth >= MAX_DEPTH:
            raise _too_deep(path)
        return [to_plain(item, (path, index), depth + 1) for index, item in enumerate(value)]
    return _other(value, path, depth)


def _other(value: Any, path: Path, depth: int) -> Any:
    if isinstance(value, type):
        raise _no_json_form(value, path)
    if isinstance(value, msgspec.Struct):
        return to_plain(msgspec.to_builtins(value, enc_hook=lambda item: to_plain(item, path, depth + 1)), path, depth)
    if hasattr(value, "model_dump"):  # a pydantic model
        return to_plain(_dump(value, path), path, depth)
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return to_plain({f.name: getattr(value, f.name) for f in fields}, path, depth)
    if isinstance(value, Enum):
        return to_plain(value.value, path, depth)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, str):
        return to_plain(str(value), path, depth)
    if isinstance(value, int):
        return _integer(int(value), path)
    if isinstance(value, float):
        return _number(float(value), path)
    if isinstance(value, Mapping):
        return to_plain(dict(value), path, depth)
    if isinstance(value, set | frozenset):
        # Sort it: a set's order differs from process to process, and payloads are compared by their digest.
        return sorted(to_plain(list(value), path, depth), key=_encoder.encode)
    if isinstance(value, list | tuple):
        return to_plain(list(value), path, depth)
    raise _no_json_form(value, path)


def _dump(model: Any, path: Path) -> Any:
    try:
        return model.model_dump(mode="json", by_alias=True)
    except ValueError as problem:  # pydantic raises a subclass of it
        kind = type(model).__name__
        raise NotJSON(f"{_show(path)} is of type {kind}, which cannot be converted to JSON: {problem}") from None


def _no_json_form(value: Any, path: Path) -> NotJSON:
    return NotJSON(
        f"{_show(path)} cannot be converted to JSON: it is an instance of the class {type(value).__name__!r}. Use "
        "dicts, lists, strings, numbers, booleans, None, dataclasses or pydantic models"
    )


def _too_deep(path: Path) -> PayloadTooDeep:
    shown = _show(path)
    shown = shown if len(shown) <= MAX_PATH_SHOWN else f"{shown[:MAX_PATH_SHOWN]}…"
    return PayloadTooDeep(f"{shown} is nested deeper than {MAX_DEPTH} levels; flatten it")


def _key(key: Any, path: Path) -> str:
    if not isinstance(key, str):
        raise NotJSON(
            f"{_show(path)} has the key {shorten(key)} of type {type(key).__name__}; JSON keys must be strings"
        )
    if not key.isascii():
        _check_text(key, path)
    return key


def _integer(value: int, path: Path) -> int:
    if -MAX_INTEGER <= value <= MAX_INTEGER:
        return value
    raise NotJSON(
        f"{_show(path)} is {shorten(value)}. JavaScript cannot represent integers beyond 2^53 - 1; pass it as a string"
    )


def _number(value: float, path: Path) -> float:
    if value - value == 0.0:  # false for NaN and for both infinities
        return value
    raise NotJSON(f"{_show(path)} is {value}, which JSON cannot represent; pass None or a string")


def _check_text(value: str, path: Path) -> None:
    if has_lone_surrogate(value):
        raise NotJSON(f"{_show(path)} contains a lone surrogate, which is not valid text: {shorten(value)}")


def _show(path: Path) -> str:
    """Return a path for a message: `payload.items[3]`, or `'items[3]' in the input of flow 'order'`."""
    keys: list[str] = []
    while not isinstance(path, str):
        path, key = path
        keys.append(f"[{key}]" if isinstance(key, int) else f".{key if len(key) <= MAX_KEY_SHOWN else shorten(key)}")
    inner = escape_line("".join(reversed(keys)))
    place, colon, name = path.rpartition(": ")
    return f"{place}{colon}{inner.removeprefix('.')!r} in {name}" if inner and " " in name else f"{path}{inner}"


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {shorten(key)} occurs twice in one object")
            seen.add(key)
    return out


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not valid JSON")


def _check_depth(text: str | bytes, what: str) -> None:
    """Check the nesting before parsing: the parser recurses and would run out of stack first."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    in_string = escaped = False
    for char in raw:
        if in_string:
            in_string = escaped or char != 0x22
            escaped = char == 0x5C and not escaped
        elif char == 0x22:
            in_string = True
        elif char in (0x5B, 0x7B):
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep(what)
        elif char in (0x5D, 0x7D):
            depth -= 1
