"""Redis' protocol: commands as bytes, errors in our words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...core.errors import StoreError, StoreFull, StoreUnavailable

Part = bytes | str | int
AWAY = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "UNKILLABLE", "NOREPLICAS", "MISCONF")
LOCKED_OUT = ("WRONGPASS", "NOAUTH", "NOPERM")
_INSIDE = re.compile(r"\b(OOM|LOADING|READONLY|MASTERDOWN|NOPERM|NOREPLICAS|MISCONF) ")


def pack(parts: Sequence[Part]) -> bytes:
    """One command as it goes over the wire."""
    out = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = part.encode() if isinstance(part, str) else part if isinstance(part, bytes) else b"%d" % part
        out.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(out)


def translate(problem: Exception, place: str) -> StoreError:
    """Our error for one of Redis'."""
    text = str(problem)
    word, _, rest = text.partition(" ")
    inner = _INSIDE.search(text)
    if inner is not None:  # what a command inside a script said
        word = inner[1]
    if word == "OOM":
        return StoreFull(f"{place} has no memory left (maxmemory): give it more or sweep, work goes on by itself")
    if word == "NQVERSION":
        queue, _, version = rest.partition(" ")
        return StoreError(
            f"the queue {queue!r} is used by {version.split()[0]}: BullMQ before 6 loses jobs of paused queues; "
            "upgrade that program, or use another queue"
        )
    if word in LOCKED_OUT:
        return StoreError(f"{place} does not let us in ({text}): check user, password and ACL")
    if word in AWAY:
        return StoreUnavailable(f"{place} cannot answer now ({text})")
    return StoreError(f"{place}: {text}")
