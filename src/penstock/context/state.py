"""A value that is read, changed and written with nobody in between.

Whoever is in the same process waits for his turn: a hundred instances that count themselves in one key would otherwise
all read the same number, and all but one would have to begin again, each time. Other processes are found out by the
version of what was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from ..core.clock import Clock
from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument, PenstockError
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


T = TypeVar("T")
Key = str | Sequence[str]


class StateConflict(PenstockError):
    """A key was set and patched in one attempt."""

    code = "state_conflict"


class PatchLog(Protocol):
    """Where patches are applied and remembered."""

    def check(self) -> None:
        """Raises if the attempt is over: what it wrote now would be lost without a word."""
        ...

    def written_before(self) -> bool:
        """Whether the write about to be made was recorded when an earlier attempt went to sleep."""
        ...

    def read_memo(self, name: str) -> bytes | None: ...

    async def apply(self, write: StateWrite, name: str) -> bool:
        """Compare-and-set together with its memo; False when another write came first."""
        ...


def join_key(key: Key) -> str:
    """A key as text; the specs' lists of parts are joined by slashes."""
    if not isinstance(key, str | list | tuple):
        raise BadArgument(f"{key!r} cannot be a state key: give a string, or a list of parts")
    text = key if isinstance(key, str) else "/".join(str(part) for part in key)
    if not text or len(text) > 500:
        raise BadArgument(f"{text!r} cannot be a state key: 1 to 500 characters")
    return text


class StateView:
    """State under one prefix, with this attempt's own writes laid over what is stored."""

    def __init__(self, prefix: str, store: State, clock: Clock, log: PatchLog, writes: dict[str, StateWrite]) -> None:
        self._prefix = prefix
        self._store = store
        self._clock = clock
        self._log = log
        self._writes = writes
        self._patches: dict[str, int] = {}

    async def get(self, key: Key, default: Any = None) -> Any:
        """The value under a key, or the default."""
        full = self._prefix + join_key(key)
        if full in self._writes:
            value = self._writes[full].value
            return default if value is None else unpack(value)
        row = await self._store.state(full)
        return default if row is None else unpack(row.value)

    def set(self, key: Key, value: Any, *, ttl: Duration | None = None) -> Done:
        """Sets a value when the attempt commits; `ttl` lets it expire."""
        self._log.check()
        full = self._prefix + join_key(key)
        packed = pack(value, f"state {full}")
        if not self._log.written_before():
            self._writes[full] = StateWrite(full, packed, None, self._expiry(ttl))
        return DONE

    def delete(self, key: Key) -> Done:
        """Deletes a key when the attempt commits."""
        self._log.check()
        full = self._prefix + join_key(key)
        if not self._log.written_before():
            self._writes[full] = StateWrite(full, None)
        return DONE

    async def list(self, prefix: Key = "", *, limit: int = 100) -> dict[str, Any]:
        """Keys and values under a prefix, in key order."""
        start = self._prefix + (join_key(prefix) if prefix else "")
        rows = {row.key: row.value for row in await self._store.states(start, limit=limit)}
        for full, write in self._writes.items():
            if full.startswith(start):
                rows.pop(full, None)
                if write.value is not None:
                    rows[full] = write.value
        return {key.removeprefix(self._prefix): unpack(rows[key]) for key in sorted(rows)[:limit]}

    async def patch(
        self, key: Key, change: Callable[[Any], Any], *, ttl: Duration | None = None, name: str | None = None
    ) -> Any:
        """Applies `change` to the stored value atomically, now and once, and gives the new value.

        A re-run of the handler is given what its first patch of the key gave, its second the second's, and so on; a
        handler that does not always patch in the same order tells its patches apart by `name`.
        """
        self._log.check()
        if not callable(change):
            raise BadArgument(f"change={change!r}: give a function that makes the new value of the old one")
        full = self._prefix + join_key(key)
        if full in self._writes:
            raise StateConflict(
                f"state {full} was set in this attempt and is not committed yet, so it cannot be patched: "
                "use either set or patch for a key"
            )
        memo = self._memo(full, name)
        recalled = self._log.read_memo(memo)
        if recalled is not None:
            return unpack(recalled)
        return await patched(self._store, full, change, self._expiry(ttl), lambda write: self._log.apply(write, memo))

    def _memo(self, full: str, name: str | None) -> str:
        if name is not None:
            return f"patch:{full}@{name}"
        number = self._patches[full] = self._patches.get(full, 0) + 1
        return f"patch:{full}#{number}"

    def _expiry(self, ttl: Duration | None) -> int | None:
        return None if ttl is None else self._clock.now_ms() + to_ms(ttl)


class Done:
    """Already done: may be awaited or not, so async and sync handlers read alike."""

    def __await__(self) -> Any:
        return iter(())


DONE = Done()


class SyncStateView:
    """The same for `def` handlers: calls wait for the answer on their own thread."""

    def __init__(self, view: StateView, loop: asyncio.AbstractEventLoop) -> None:
        self._view = view
        self._loop = loop

    def get(self, key: Key, default: Any = None) -> Any:
        return self._wait(self._view.get(key, default))

    def set(self, key: Key, value: Any, *, ttl: Duration | None = None) -> None:
        self._view.set(key, value, ttl=ttl)

    def delete(self, key: Key) -> None:
        self._view.delete(key)

    def list(self, prefix: Key = "", *, limit: int = 100) -> dict[str, Any]:
        return dict(self._wait(self._view.list(prefix, limit=limit)))

    def patch(
        self, key: Key, change: Callable[[Any], Any], *, ttl: Duration | None = None, name: str | None = None
    ) -> Any:
        return self._wait(self._view.patch(key, change, ttl=ttl, name=name))

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
