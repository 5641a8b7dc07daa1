"""A value that is read, changed and written with nobody in between.

Whoever is in the same process waits for his turn: a hundred instances that count themselves in one key would otherwise
all read the same number, and all but one would have to begin again, each time. Other processes are found out by the
version of what was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from ..core.errors import PenstockError
from ..core.payload import pack, unpack
from ..ports.store import State
from ..ports.unit import StateWrite

MAX_TRIES = 100
PAUSE = 0.002  # seconds, for each time that another process was quicker

Locks = WeakValueDictionary[str, asyncio.Lock]
_turns: WeakKeyDictionary[State, Locks] = WeakKeyDictionary()


class StateContention(PenstockError):
    """A patch lost the race too many times in a row."""

    code = "state_contention"


async def patched(
    store: State,
    key: str,
    change: Callable[[Any], Any],
    expires: int | None,
    write: Callable[[StateWrite], Awaitable[bool]],
) -> Any:
    """The new value. `write` answers False when the key is no longer as it was read."""
    async with _turn(store, key):
        for tries in range(MAX_TRIES):
            row = await store.state(key)
            value = pack(change(None if row is None else unpack(row.value)), f"state {key}")
            if await write(StateWrite(key, value, row.version if row else 0, expires)):
                return unpack(value)
            await asyncio.sleep(PAUSE * tries)
    raise StateContention(
        f"state {key} was changed by other processes {MAX_TRIES} times while being patched: spread the writes over "
        "more keys, or give the step a retry"
    )


def _turn(store: State, key: str) -> asyncio.Lock:
    locks = _turns.setdefault(store, WeakValueDictionary())
    return locks.setdefault(key, asyncio.Lock())
