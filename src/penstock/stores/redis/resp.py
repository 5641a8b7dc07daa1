"""Redis' protocol: commands as bytes, and its errors as ours."""

from __future__ import annotations

import re
from collections.abc import Sequence

import hiredis
from redis import exceptions

from ...core.errors import BrokenQueue, StoreError, StoreFull, StoreUnavailable

Part = bytes | str | int
HEAD = 7  # values that every reply of commit.lua starts with
UNAVAILABLE = (
    "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "ASK", "MOVED", "BUSY", "UNKILLABLE", "NOREPLICAS",
    "MISCONF",
)  # fmt: skip
NOT_ALLOWED = ("WRONGPASS", "NOAUTH", "NOPERM")
_INSIDE_SCRIPT = re.compile(r"\b(OOM|LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|NOPERM|NOREPLICAS|MISCONF|NQQUEUE) ")
# redis-py removes the word from the message and names it by a class.
_WORDS = (
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.AuthenticationError, "NOAUTH"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.AskError, "ASK"),
)


def pack(parts: Sequence[Part]) -> bytes:
    """Return one command as it goes over the connection."""
    packed: bytes = hiredis.pack_command(tuple(parts))  # type: ignore[arg-type]
    return packed


def pack_all(commands: Sequence[Sequence[Part]]) -> bytes:
    """Return several commands as they go over the connection."""
    return b"".join(map(pack, commands))


def word_of(problem: Exception) -> str:
    """Return the first word of an error; for an error inside a script, the word of the command that failed there."""
    text = str(problem)
    inner = _INSIDE_SCRIPT.search(text)
    return inner[1] if inner is not None else text.partition(" ")[0]


def translate(problem: Exception, where: str) -> StoreError:
    """Return our error for an error reply of Redis."""
    return _store_error(str(problem), word_of(problem), where)


def translate_client_error(problem: Exception, where: str) -> StoreError:
    """Return our error for one that redis-py raised."""
    for kind, word in _WORDS:
        if isinstance(problem, kind):
            return _store_error(f"{word} {problem}", word, where)
    if isinstance(problem, (exceptions.ConnectionError, exceptions.TimeoutError, OSError, ValueError, OverflowError)):
        return StoreUnavailable(f"{where} is not answering ({problem})")
    return translate(problem, where)


def _store_error(text: str, word: str, where: str) -> StoreError:
    rest = text.partition(" ")[2]
    if word == "OOM":
        return StoreFull(
            f"{where} has no memory left (maxmemory); raise the limit or delete old data. Work then continues "
            "automatically"
        )
    if word == "NQVERSION":
        queue, _, version = rest.partition(" ")
        return StoreError(
            f"queue {queue!r} is used by {version.split()[0]}, but BullMQ before 6 loses jobs of paused queues; "
            "upgrade that program, or use another queue"
        )
    if word == "NQQUEUE":
        return BrokenQueue(text.partition("NQQUEUE ")[2])
    if word in NOT_ALLOWED or "The user executing the script can't" in text:
        return StoreError(f"{where} denied access ({text}); check the user, the password and the ACL")
    if "SELECT is not allowed in cluster mode" in text:
        return StoreError(f"{where} is a cluster, which has only one database; end the URL with /0")
    if word in UNAVAILABLE:
        return StoreUnavailable(f"{where} is currently unavailable ({text})")
    return StoreError(f"{where}: {text}")
