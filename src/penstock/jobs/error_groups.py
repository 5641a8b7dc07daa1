"""Error groups: dead letters that failed in the same way have the same group.

A group is made of the error's class, its code, its message without numbers and ids, and the function of the user's code
that raised it. Line numbers do not count, because an edit elsewhere in the file moves them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from ..core.ids import digest

MAX_MESSAGE_CHARS = 200
GROUP_CHARS = 12
_IDS = re.compile(
    r"0x[0-9a-fA-F]+"
    r"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|\b(?=[\w.@-]{0,100}\d)[A-Za-z0-9][\w.@-]{7,}"  # a long word with a digit in it
    r"|\d+(?:[.,:]\d+)*"
)


class ErrorSignature(msgspec.Struct, frozen=True):
    """What the letters of a group have in common."""

    name: str
    code: str | None
    message: str  # numbers and ids are shown as #
    frame: str  # file and function of the user's code

    @property
    def group(self) -> str:
        """The id of the group: the same in every process and on every machine."""
        return digest("\0".join((self.name, self.code or "", self.message, self.frame)).encode())[:GROUP_CHARS]


def sign_error(error: Mapping[str, Any]) -> ErrorSignature:
    """Return the signature of the error of a dead letter."""
    name, code, message = (str(error.get(key) or "") for key in ("name", "code", "message"))
    return ErrorSignature(name[:MAX_MESSAGE_CHARS], code or None, normalize(message), _frame(error.get("frames")))


def normalize(message: str) -> str:
    """Return a message without what differs from case to case, on one line."""
    words = " ".join(message[: 4 * MAX_MESSAGE_CHARS].split())
    return _IDS.sub("#", words)[:MAX_MESSAGE_CHARS]


def _frame(frames: Any) -> str:
    """Return the innermost frame. Of its path the last two names: the rest differs from machine to machine."""
    last = frames[-1] if isinstance(frames, Sequence) and frames else None
    if not isinstance(last, Mapping) or not isinstance(last.get("file"), str):
        return ""
    return f"{'/'.join(PurePath(last['file']).parts[-2:])}:{last.get('function', '')}"
