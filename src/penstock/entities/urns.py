"""Urns: any text names an entity. Its id, the end of its stream's name, is the urn itself where it fits."""

from __future__ import annotations

import re

from ..core.errors import BadArgument
from ..core.ids import digest
from ..core.text import has_lone_surrogate, shorten

MAX_URN_CHARS = 500
MAX_READABLE_CHARS = 120
ESCAPED, HASHED = "x.", "h."
_FITS = re.compile(r"[A-Za-z0-9._-]+")
_KEPT = re.compile(r"[A-Za-z0-9._]")


def to_id(urn: str) -> str:
    """Return the id of an entity: its urn, or an escaped form (`urn:order:7` becomes `x.urn--order--7`), or a hash of
    a long one. Two urns never have the same id."""
    check_urn(urn)
    fits = _FITS.fullmatch(urn) and len(urn) <= MAX_READABLE_CHARS and not urn.isdigit()
    if fits and not urn.startswith((ESCAPED, HASHED)):
        return urn
    escaped = ESCAPED + "".join(_escape(char) for char in urn)
    return escaped if len(escaped) <= MAX_READABLE_CHARS else HASHED + digest(urn.encode())


def _escape(char: str) -> str:
    if _KEPT.fullmatch(char):
        return char
    return "--" if char == ":" else "".join(f"-{byte:02x}" for byte in char.encode())


def check_urn(urn: str) -> str:
    """Return the urn, or raise BadArgument."""
    if not isinstance(urn, str) or not urn or len(urn) > MAX_URN_CHARS or has_lone_surrogate(urn):
        raise BadArgument(f"a urn must be a text of 1 to {MAX_URN_CHARS} characters, got {shorten(urn)}")
    return urn
