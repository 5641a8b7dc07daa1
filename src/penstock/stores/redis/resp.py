"""Redis' protocol: commands as bytes, errors in our words."""

from __future__ import annotations

import re
from collections.abc import Sequence

import hiredis

from ...core.errors import StoreError, StoreFull, StoreUnavailable

Part = bytes | str | int
HEAD = 6  # values that every reply of turn.lua begins with
AWAY = (
    "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "ASK", "MOVED", "BUSY", "UNKILLABLE", "NOREPLICAS",
    "MISCONF",
)  # fmt: skip
LOCKED_OUT = ("WRONGPASS", "NOAUTH", "NOPERM")
_INSIDE = re.compile(r"\b(OOM|LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|NOPERM|NOREPLICAS|MISCONF) ")


def pack(parts: Sequence[Part]) -> bytes:
    """One command as it goes over the wire."""
    packed: bytes = hiredis.pack_command(tuple(parts))  # type: ignore[arg-type]
    return packed


def word_of(problem: Exception) -> str:
    """The word an error of Redis begins with; for one inside a script, what the command there said."""
    text = str(problem)
    inner = _INSIDE.search(text)
    return inner[1] if inner is not None else text.partition(" ")[0]


def translate(problem: Exception, place: str) -> StoreError:
    """Our error for one of Redis'."""
    text, word = str(problem), word_of(problem)
    rest = text.partition(" ")[2]
    if word == "OOM":
        return StoreFull(f"{place} has no memory left (maxmemory): give it more or sweep, work goes on by itself")
    if word == "NQVERSION":
        queue, _, version = rest.partition(" ")
        return StoreError(
            f"the queue {queue!r} is used by {version.split()[0]}: BullMQ before 6 loses jobs of paused queues; "
            "upgrade that program, or use another queue"
        )
    if word in LOCKED_OUT or "The user executing the script can't" in text:
        return StoreError(f"{place} does not let us in ({text}): check user, password and ACL")
    if "SELECT is not allowed in cluster mode" in text:
        return StoreError(f"{place} is a cluster, which has one database: end the URL with /0")
    if word in AWAY:
        return StoreUnavailable(f"{place} cannot answer now ({text})")
    return StoreError(f"{place}: {text}")
