"""`app.state`: the application's shared keys, and those of a run, from outside a handler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..context.state import Key, StatePage, join_key, list_states, patch_state, read_value
from ..context.state_events import build_state_events
from ..core.argument_checks import check_arguments
from ..core.durations import Duration, to_ms
from ..core.ids import check_id
from ..core.payload import pack_inline
from ..core.text import shorten
from ..ports.unit import Committed, NewEvent, StateWrite, Unit
from .arguments import check_function


@check_arguments
class AppState:
    """Keys under one prefix; writes take effect at once."""

    def __init__(self, runtime: Runtime, prefix: str = "shared/", run: str | None = None) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._committer = runtime.committer
        self._clock = runtime.clock
        self._unit_id = runtime.new_unit_id
        self._prefix = prefix
        self._run = run

    def of_run(self, run: str) -> AppState:
        """Return the keys that the steps of a run share, as `ctx.state` has them.

        Args:
            run: The run's id.
        """
        return AppState(self._runtime, f"run/{check_id(run, 'run id')}/", run)

    async def get(self, key: Key, default: Any = None) -> Any:
        """Return the value of a key.

        Args:
            key: Name of the key: text, or a list of parts that are joined with "/".
            default: What to return if the key does not exist.
        """
        name = join_key(key)
        row = await self._store.state(self._prefix + name)
        return default if row is None else read_value(name, row.value)

    async def set(self, key: Key, value: Any, *, ttl: Duration | None = None) -> None:
        """Set a key.

        Args:
            key: Name of the key: text, or a list of parts that are joined with "/".
            value: Any JSON value.
            ttl: Delete the key after this duration, such as "1d". Default: never.
        """
        name = join_key(key)
        packed = pack_inline(value, f"state {shorten(name)}")
        await self._write(StateWrite(self._prefix + name, packed, None, self._expiry(ttl)))

    async def delete(self, key: Key) -> None:
        """Delete a key.

        Args:
            key: Name of the key: text, or a list of parts that are joined with "/".
        """
        await self._write(StateWrite(self._prefix + join_key(key), None))

    async def list(self, prefix: Key = "", *, after: Key | None = None, limit: int = 100) -> StatePage:
        """Return keys and values in key order. `next` of the result is the `after` of the next page, or None.

        Args:
            prefix: Only keys that start with this.
            after: The last key of the page before.
            limit: Maximum number of keys.
        """
        start = self._prefix + (join_key(prefix) if prefix else "")
        last = self._prefix + join_key(after) if after is not None else None
        rows = await list_states(self._store, self._prefix, start, last, limit + 1)
        return StatePage.cut({row.key.removeprefix(self._prefix): row.value for row in rows}, limit)

    async def patch(self, key: Key, change: Callable[[Any], Any], *, ttl: Duration | None = None) -> Any:
        """Apply a function to the stored value atomically and return the new value.

        Args:
            key: Name of the key: text, or a list of parts that are joined with "/".
            change: Function of the old value (None if there is none) that returns the new one. It may be called again
                if another writer changes the key meanwhile.
            ttl: Delete the key after this duration.
        """
        check_function(change, "change", "that takes the old value and returns the new one")
        full = self._prefix + join_key(key)
        return await patch_state(self._store, full, change, self._expiry(ttl), self._write)

    def _expiry(self, ttl: Duration | None) -> int | None:
        return None if ttl is None else self._clock.now_ms() + to_ms(ttl)

    async def _write(self, write: StateWrite) -> bool:
        unit = Unit(self._unit_id(), state=[write], events=[*await self._build_events(write)])
        return isinstance(await self._committer.submit(CommitRequest(lambda _v, _r: unit)), Committed)

    async def _build_events(self, write: StateWrite) -> Sequence[NewEvent]:
        """Build the event of a change to the state of a run that exists."""
        if self._run is None or not self._runtime.bodies.records_state:
            return []
        row = await self._store.run(self._run)
        if row is None:
            return []
        stream = self._runtime.bodies.run(row.kind, row.id)
        return build_state_events(self._runtime.bodies, stream, row.id, [write])
