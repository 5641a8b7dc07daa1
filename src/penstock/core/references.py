"""References: what a store keeps instead of a large value, which is in the blob store."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

KEY = "$penstock:blob"
REFERENCES = "blob/ref/"  # state: who refers to which value
# Inside a JSON string every quote is escaped: these bytes can only be a key.
MARK = b'"$penstock:blob":'
_ONE = rb'"[0-9a-f]{64}(?:-[0-9a-f]{8})?"'
_REFERENCE = re.compile(rb'\{"\$penstock:blob":(%b|\[%b(?:,%b)+\])\}' % (_ONE, _ONE, _ONE))
_NAME = re.compile(r"[0-9a-f]{64}(?:-[0-9a-f]{8})?")


def make_reference(names: Sequence[str]) -> bytes:
    """Return the JSON that stands for a value, which consists of these objects."""
    texts = ",".join(f'"{name}"' for name in names)
    return f'{{"{KEY}":{texts if len(names) == 1 else f"[{texts}]"}}}'.encode()


def find_references(data: bytes) -> set[str]:
    """Return the names of the objects that a JSON document refers to."""
    return {name for found in _REFERENCE.findall(data) for name in _read_names(found)} if MARK in data else set()


def fill_references(data: bytes, values: Mapping[str, bytes]) -> bytes:
    """Return a JSON document with the values in place of their references. Unknown references stay."""

    def fill(found: re.Match[bytes]) -> bytes:
        parts = [values.get(name) for name in _read_names(found[1])]
        return b"".join(part for part in parts if part is not None) if None not in parts else found[0]

    return _REFERENCE.sub(fill, data)


def read_reference(value: Any) -> list[str]:
    """Return the names of the objects that decoded JSON stands for; none if it is no reference."""
    if not isinstance(value, dict) or len(value) != 1 or KEY not in value:
        return []
    found = value[KEY]
    names = found if isinstance(found, list) else [found]
    return names if all(isinstance(name, str) and _NAME.fullmatch(name) for name in names) else []


def _read_names(found: bytes) -> list[str]:
    return found.decode().strip("[]").replace('"', "").split(",")
