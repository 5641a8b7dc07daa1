"""What stores say of children alike: their keys, and why one failed."""

from __future__ import annotations

import msgspec

# Handlers find the values of children under the keys that BullMQ gives them, whatever the store.
PREFIX = "bull"


class _Error(msgspec.Struct):
    error: str = ""
    message: str = ""


_error = msgspec.json.Decoder(_Error).decode


def child_key(queue: str, id: str) -> str:
    return f"{PREFIX}:{queue}:{id}"


def reason(error: bytes) -> str:
    """The message of an error as the engine records it; of anything else its text."""
    try:
        found = _error(error)
    except msgspec.MsgspecError:
        return error.decode(errors="replace")
    return found.error or found.message or error.decode(errors="replace")
