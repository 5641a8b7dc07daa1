"""The keys of children and the errors of failed ones, the same on every store."""

from __future__ import annotations

import msgspec

# Handlers read the values of children under the keys that BullMQ uses, on every store.
PREFIX = "bull"


class _Error(msgspec.Struct):
    error: str = ""
    message: str = ""


_decode_error = msgspec.json.Decoder(_Error).decode


def child_key(queue: str, id: str) -> str:
    """Return the key of a child."""
    return f"{PREFIX}:{queue}:{id}"


def error_text(error: bytes) -> str:
    """Return the message of an error that the engine recorded, and the text of any other value."""
    try:
        found = _decode_error(error)
    except msgspec.MsgspecError:
        return error.decode(errors="replace")
    return found.error or found.message or error.decode(errors="replace")
