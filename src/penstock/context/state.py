"""`ctx.state`: keys and values, written with the attempt's commit or patched atomically at once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from ..core.argument_checks import MAX_WORD_CHARS, check_count
from ..core.clock import Clock
from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument, PenstockError, UnreadableRecord
from ..core.payload import pack_inline, unpack
from ..core.stored import read_stored
from ..core.text import check_text, escape_line, shorten
from ..ports.store import State, StateRow
from ..ports.unit import StateWrite

MAX_PATCH_TRIES = 100
PATCH_PAUSE_S = 0.002  # multiplied by the number of tries another process won
MAX_KEY_CHARS = 500
OWN_KEYS = ".record/"  # the prefix of the engine's own keys in the state of a run; lists do not show them

Key = str | Sequence[str]
KeyLocks = WeakValueDictionary[str, asyncio.Lock]
_locks_by_store: WeakKeyDictionary[State, KeyLocks] = WeakKeyDictionary()


class StatePage(dict[str, Any]):
    """A page of keys and values. `next` is the `after` of the next page; None if there are no more keys."""

    next: str | None = None

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        super().__init__(values or {})
        self.unreadable: dict[str, str] = {}  # keys whose values cannot be read, with the reason

    @classmethod
    def cut(cls, rows: dict[str, bytes], limit: int) -> StatePage:
        """Decode the first `limit` values of rows that may be more."""
        keys = list(rows)[:limit]
        page = cls()
        for key in keys:
            try:
                page[key] = read_value(key, rows[key])
            except UnreadableRecord as problem:
                page.unreadable[key] = str(problem)
        page.next = keys[-1] if len(rows) > limit else None
        return page


def read_value(key: str, data: bytes) -> Any:
    """Decode the value of a key. Raise UnreadableRecord if it is damaged."""
    return read_stored(unpack, data, f"the value of state key {key!r}", "set the key again, or delete it")


class StateConflict(PenstockError):
    """A key was set and patched in one attempt."""

    code = "state_conflict"


class StateContention(PenstockError):
    """A patch lost to other processes too many times in a row."""

    code = "state_contention"


class AlreadyDone:
    """Already done. It may be awaited or not, so that async and sync handlers read alike."""

    def __await__(self) -> Any:
        return iter(())


DONE = AlreadyDone()


class StateRecorder(Protocol):
    """The attempt, as its state sees it."""

    def check(self) -> None:
        """Raise if the attempt is over: its writes would be lost."""
        ...

    def count_write(self, key: str, size: int) -> bool:
        """Count a set or delete of `size` bytes. Return whether an earlier attempt committed it before it suspended."""
        ...

    def read_memo(self, name: str) -> bytes | None:
        """Return the recorded result of a patch, or None."""
        ...

    async def commit_patch(self, write: StateWrite, memo: str) -> bool:
        """Compare and set, together with the memo; return False if another write came first."""
        ...


class StateView:
    """State under one prefix, with this attempt's own writes on top of what is stored."""

    def __init__(
        self, prefix: str, store: State, clock: Clock, recorder: StateRecorder, writes: dict[str, StateWrite]
    ) -> None:
        self._prefix = prefix
        self._store = store
        self._clock = clock
        self._recorder = recorder
        self._writes = writes
        self._patches: dict[str, int] = {}

    async def get(self, key: Key, default: Any = None) -> Any:
        """Return the value of a key.

        Args:
            key: Name of the key: text, or a list of parts that are joined with "/".
            default: What to return if the key does not exist.
        """
        full = self._prefix + join_key(key)
        if full in self._writes:
            value = self._writes[full].value
            return default if value is None else unpack(value)
        row = await self._store.state(full)
        return default if row is None else read_value(full, row.value)

    def set(self, key: Key, value: Any, *, ttl: Duration | None = None) -> AlreadyDone:
        """Set a key when the attempt commits.

        Args:
            key: Name of the key: text, or a list of parts that are joined with "/".
            value: Any JSON value.
            ttl: Delete the key after this duration, such as "1d". Default: never.
        """
        self._recorder.check()
        full = self._prefix + join_key(key)
        packed = pack_inline(value, f"state {escape_line(full)}")
        if not self._recorder.count_write(full, len(packed)):
            self._writes[full] = StateWrite(full, packed, None, self._expiry(ttl))
        return DONE

    def delete(self, key: Key) -> AlreadyDone:
        """Delete a key when the attempt commits.

        Args:
            key: Name of the key: text, or a list of parts that are joined with "/".
        """
        self._recorder.check()
        full = self._prefix + join_key(key)
        if not self._recorder.count_write(full, 0):
            self._writes[full] = StateWrite(full, None)
        return DONE

    async def list(self, prefix: Key = "", *, after: Key | None = None, limit: int = 100) -> StatePage:
        """Return keys and values in key order. `next` of the result is the `after` of the next page, or None.

        Args:
            prefix: Only keys that start with this.
            after: The last key of the page before.
            limit: Maximum number of keys.
        """
        check_count(limit)
        start = self._prefix + (join_key(prefix) if prefix else "")
        last = self._prefix + join_key(after) if after is not None else None
        # Deleted keys are still stored: read so many more.
        writes = {full: write for full, write in self._writes.items() if full.startswith(start) and full > (last or "")}
        stored = await list_states(self._store, self._prefix, start, last, limit + len(writes) + 1)
        rows = {row.key: row.value for row in stored}
        for full, write in writes.items():
            rows.pop(full, None)
            if write.value is not None:
                rows[full] = write.value
        return StatePage.cut({key.removeprefix(self._prefix): rows[key] for key in sorted(rows)}, limit)

    async def patch(
        self, key: Key, change: Callable[[Any], Any], *, ttl: Duration | None = None, name: str | None = None
    ) -> Any:
        """Apply `change` to the stored value atomically, at once and once, and return the new value.

        A replay of the handler returns the recorded values: of the first patch of a key, of the second, and so on.

        Args:
            key: The key to patch.
            change: A function of the old value (None if there is none) that returns the new one.
            ttl: The new value expires after this duration.
            name: Identifies the patch in a handler that does not always patch in the same order.
        """
        self._recorder.check()
        if not callable(change):
            raise BadArgument(
                "the second argument of state.patch must be a function that takes the old value and returns the new "
                f"one, got {shorten(change)}"
            )
        full = self._prefix + join_key(key)
        if full in self._writes:
            raise StateConflict(
                f"state {shorten(full)} cannot be patched, because it was set in this attempt and is not committed "
                "yet. Use either set or patch for a key"
            )
        memo = self._memo_name(full, name)
        recorded = self._recorder.read_memo(memo)
        if recorded is not None:
            return unpack(recorded)
        return await patch_state(
            self._store, full, change, self._expiry(ttl), lambda write: self._recorder.commit_patch(write, memo)
        )

    def _memo_name(self, full: str, name: str | None) -> str:
        if name is not None:
            return f"patch:{full}@{check_text(name, 'name', MAX_WORD_CHARS)}"
        number = self._patches[full] = self._patches.get(full, 0) + 1
        return f"patch:{full}#{number}"

    def _expiry(self, ttl: Duration | None) -> int | None:
        return None if ttl is None else self._clock.now_ms() + to_ms(ttl)


class SyncStateView:
    """The state of a `def` handler: calls block its thread until the answer is there."""

    def __init__(self, view: StateView, loop: asyncio.AbstractEventLoop) -> None:
        self._view = view
        self._loop = loop

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the value of a key.

        Args:
            key: Name of the key: text, or a list of parts that are joined with "/".
            default: What to return if the key does not exist.
        """
        return self._wait(self._view.get(key, default))

    def set(self, key: Key, value: Any, *, ttl: Duration | None = None) -> None:
        """Set a key when the attempt commits.

        Args:
            key: Name of the key: text, or a list of parts that are joined with "/".
            value: Any JSON value.
            ttl: Delete the key after this duration, such as "1d". Default: never.
        """
        self._view.set(key, value, ttl=ttl)

    def delete(self, key: Key) -> None:
        """Delete a key when the attempt commits.

        Args:
            key: Name of the key: text, or a list of parts that are joined with "/".
        """
        self._view.delete(key)

    def list(self, prefix: Key = "", *, after: Key | None = None, limit: int = 100) -> StatePage:
        """Return keys and values in key order. `next` of the result is the `after` of the next page, or None.

        Args:
            prefix: Only keys that start with this.
            after: The last key of the page before.
            limit: Maximum number of keys.
        """
        return self._wait(self._view.list(prefix, after=after, limit=limit))  # type: ignore[no-any-return]

    def patch(
        self, key: Key, change: Callable[[Any], Any], *, ttl: Duration | None = None, name: str | None = None
    ) -> Any:
        """Apply `change` to the stored value atomically, at once and once, and return the new value.

        Args:
            key: The key to patch.
            change: A function of the old value (None if there is none) that returns the new one.
            ttl: The new value expires after this duration.
            name: Identifies the patch in a handler that does not always patch in the same order.
        """
        return self._wait(self._view.patch(key, change, ttl=ttl, name=name))

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def list_states(store: State, root: str, start: str, after: str | None, limit: int) -> Sequence[StateRow]:
    """Return the keys that start with `start`, without the engine's own under `root`."""
    own = root + OWN_KEYS
    rows = await store.states(start, after=after, limit=limit)
    shown = [row for row in rows if not row.key.startswith(own)]
    if len(shown) < len(rows) == limit:  # go on after the engine's own
        shown += await store.states(start, after=max(own + "~", rows[-1].key), limit=limit - len(shown))
    return shown


def join_key(key: Key) -> str:
    """Return a key as text; a list of parts, as the specs write it, is joined with slashes."""
    if not isinstance(key, str | list | tuple):
        raise BadArgument(f"a state key must be a string or a list of parts, got {shorten(key)}")
    if not isinstance(key, str) and not all(isinstance(part, str) or _is_id(part) for part in key):
        raise BadArgument(f"the parts of a state key must be strings or whole numbers, got {shorten(key)}")
    text = key if isinstance(key, str) else "/".join(map(str, key))
    if not text or len(text) > MAX_KEY_CHARS:
        raise BadArgument(f"a state key must have 1 to {MAX_KEY_CHARS} characters, got {shorten(text)}")
    return check_text(text, "a state key")


def _is_id(part: object) -> bool:
    return isinstance(part, int) and abs(part) < 2**63


async def patch_state(
    store: State,
    key: str,
    change: Callable[[Any], Any],
    expires: int | None,
    write: Callable[[StateWrite], Awaitable[bool]],
) -> Any:
    """Read, change and write a value until no other write comes between, and return the new value.

    `write` returns False if the key has changed since it was read. Callers in one process take turns: a hundred
    instances that count in one key would otherwise all read the same number, and all but one would try again, each
    time. The version of what was read detects writes of other processes."""
    async with _key_lock(store, key):
        for tries in range(MAX_PATCH_TRIES):
            row = await store.state(key)
            changed = change(None if row is None else read_value(key, row.value))
            if inspect.isawaitable(changed):  # the function is in another process
                changed = await changed
            value = pack_inline(changed, f"state {escape_line(key)}")
            if await write(StateWrite(key, value, row.version if row else 0, expires)):
                return unpack(value)
            await asyncio.sleep(PATCH_PAUSE_S * tries)
    raise StateContention(
        f"state {key} was changed by other processes {MAX_PATCH_TRIES} times while it was being patched. Spread "
        "the writes over more keys, or set a retry on the step"
    )


def _key_lock(store: State, key: str) -> asyncio.Lock:
    locks = _locks_by_store.setdefault(store, WeakValueDictionary())
    return locks.setdefault(key, asyncio.Lock())
