"""Keys of blobs: which names may become paths of a blob store."""

from __future__ import annotations

import re

from .errors import BadArgument
from .text import shorten

MAX_KEY_CHARS = 512
MAX_PARTS = 20
# A part is neither "." nor ".." nor a hidden file, and has nothing that file systems, URLs or shells treat specially.
_PART = r"[A-Za-z0-9_=+@-][A-Za-z0-9._=+@-]*"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")
_PREFIX = re.compile(rf"(?:{_PART}/)*(?:{_PART})?")
_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}(?:; ?[a-z]+=[A-Za-z0-9_.-]{1,60})?")


def check_blob_key(key: str) -> str:
    """Return the key of a blob, or raise BadArgument with the rules for keys."""
    if not isinstance(key, str) or not _fits(_KEY, key):
        raise BadArgument(
            f"invalid blob key {shorten(key)}; use parts of letters, digits and ._=+@- that do not start with a dot, "
            f"joined with '/', at most {MAX_PARTS} parts and {MAX_KEY_CHARS} characters"
        )
    return str(key)


def check_blob_prefix(prefix: str) -> str:
    """Return the start of keys, or raise BadArgument if no key can start with it."""
    if prefix and not _fits(_PREFIX, prefix):
        raise BadArgument(f"invalid blob prefix {shorten(prefix)}; use the start of a key, such as 'reports/'")
    return prefix


def check_content_type(value: str | None) -> str | None:
    """Return a content type, or raise BadArgument if it is not one."""
    if value is not None and not (isinstance(value, str) and _TYPE.fullmatch(value)):
        raise BadArgument(f"content_type must be a media type such as 'text/csv', got {shorten(value)}")
    return value


def _fits(pattern: re.Pattern[str], text: str) -> bool:
    return len(text) <= MAX_KEY_CHARS and text.count("/") < MAX_PARTS and pattern.fullmatch(text) is not None
