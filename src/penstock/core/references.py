"""References: what a store keeps instead of a large value, which is in the blob store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

KEY = "$penstock:blob"
REFERENCES = "blob/ref/"  # state: who refers to which value
# Inside a JSON string every quote is escaped: these bytes can only be a key.
MARK = b'"$penstock:blob":'
_REFERENCE = re.compile(rb'\{"\$penstock:blob":"([0-9a-f]{64}(?:-[0-9a-f]{8})?)"\}')
_NAME = re.compile(r"[0-9a-f]{64}(?:-[0-9a-f]{8})?")


def make_reference(name: str) -> bytes:
    """Return the JSON that stands for a value."""
    return b'{"%b":"%b"}' % (KEY.encode(), name.encode())


def find_references(data: bytes) -> set[str]:
    """Return the names of the values that a JSON document refers to."""
    return {found.decode() for found in _REFERENCE.findall(data)} if MARK in data else set()


def fill_references(data: bytes, values: Mapping[str, bytes]) -> bytes:
    """Return a JSON document with the values in place of their references. Unknown references stay."""
    return _REFERENCE.sub(lambda found: values.get(found[1].decode(), found[0]), data)


def read_reference(value: Any) -> str | None:
    """Return the name of the value that decoded JSON stands for; None if it is no reference."""
    if not isinstance(value, dict) or len(value) != 1 or KEY not in value:
        return None
    name = value[KEY]
    return name if isinstance(name, str) and _NAME.fullmatch(name) else None
