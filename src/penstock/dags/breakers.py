"""Circuit breakers of executors: their state is in the store, so all workers share it and people see it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.clock import to_iso
from ..core.errors import CircuitOpen, Permanent, RateLimited, SchemaViolation, StoreError
from ..core.ids import digest
from ..core.stored import read_stored
from ..handlers.breaker_options import BreakerOptions
from ..ports.store import StateRow
from ..ports.unit import Receipt, Refused, StateWrite, Unit

BREAKERS = "dag-breaker/"
PAGE = 200
MAX_KEY_CHARS = 200
MIN_PROBE_MS = 60_000
log = logging.getLogger("penstock.dags")


class BreakerState(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One circuit breaker as it is now.

    Attributes:
        type: Of the nodes that it guards.
        key: The value that has this breaker; empty if the type has one breaker.
        state: `closed`: calls are made. `open`: none is, until `until`. `half-open`: one call probes.
        failures: Failures in a row.
        until: When the next probe may be made, or when the probe counts as lost.
        error: The last failure.
    """

    type: str
    key: str = ""
    state: Literal["closed", "open", "half-open"] = "closed"
    failures: int = 0
    until_ms: int = 0
    error: str = ""
    probe: str = ""  # the job that probes

    @property
    def until(self) -> str | None:
        return to_iso(self.until_ms) if self.until_ms else None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(BreakerState).decode


class Breakers:
    """Reads and changes breakers. Every change is a compare-and-set."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.store

    @property
    def now_ms(self) -> int:
        return self._runtime.clock.now_ms()

    async def list(self) -> list[BreakerState]:
        """Return every breaker that has counted a failure, by type and key."""
        found: list[BreakerState] = []
        after = None
        while rows := await self._store.states(BREAKERS, after=after, limit=PAGE):
            found += [self._read(row) for row in rows]
            after = rows[-1].key
        return found

    async def reset(self, type: str, key: str = "") -> bool:
        """Close a breaker. Return False if it is closed and has no failures."""
        return await self.change(type, key, lambda _: None) is not None

    async def read(self, type: str, key: str) -> BreakerState:
        row = await self._store.state(_place(type, key))
        return self._read(row) if row is not None else BreakerState(type, key)

    async def change(
        self, type: str, key: str, change: Callable[[BreakerState], BreakerState | None]
    ) -> BreakerState | None:
        """Replace a breaker by what `change` returns, None for a closed one without failures. Return what it was; None
        if nothing has changed."""
        place = _place(type, key)
        while True:
            row = await self._store.state(place)
            before = self._read(row) if row is not None else BreakerState(type, key)
            after = change(before)
            if after == before or (after is None and row is None):
                return None
            value = _encode(after) if after is not None else None
            write = StateWrite(place, value, row.version if row is not None else 0)
            unit = Unit(self._runtime.new_unit_id(), state=[write])
            if not isinstance(await self._submit(unit), Refused):
                return before

    async def _submit(self, unit: Unit) -> Receipt:
        return await self._runtime.committer.submit(CommitRequest(lambda _v, _r: unit))

    def _read(self, row: StateRow) -> BreakerState:
        return read_stored(_decode, row.value, f"the breaker {row.key.removeprefix(BREAKERS)!r}", "reset it")


class BreakerGate:
    """Guards one call of an executor."""

    def __init__(
        self, breakers: Breakers, type: str, key: str, options: BreakerOptions, job: str, timeout_ms: int | None
    ) -> None:
        self._breakers = breakers
        self._type, self._key = type, key
        self._options = options
        self._job = job
        self._probe_ms = max(options.open_for_ms, timeout_ms or 0, MIN_PROBE_MS)

    async def call(self, run: Callable[[], Awaitable[Any]]) -> Any:
        """Call the executor unless the breaker is open, and record how the call ended."""
        before = await self._enter()
        try:
            result = await run()
        except (Permanent, SchemaViolation):
            await self._close(before)  # the service answered
            raise
        except Exception as problem:
            if isinstance(problem, RateLimited | StoreError):  # it says nothing about the service
                await self._release()
            else:
                await self._count(f"{type(problem).__name__}: {problem}"[:500])
            raise
        except BaseException:  # it waits, or was interrupted
            await self._release()
            raise
        await self._close(before)
        return result

    async def _enter(self) -> BreakerState:
        """Return the breaker as it was. Raise CircuitOpen if no call may be made now."""
        found = await self._breakers.read(self._type, self._key)
        if found.state == "closed":
            return found
        await self._breakers.change(self._type, self._key, self._take_probe)
        found = await self._breakers.read(self._type, self._key)
        if found.state == "half-open" and found.probe == self._job:
            return found
        if found.state == "closed":
            return found
        name = f"{self._type} {self._key}".strip()
        raise CircuitOpen(
            f"the circuit breaker of {name!r} is {found.state} after {found.failures} failures; the last one: "
            f"{found.error}",
            after=max(found.until_ms - self._breakers.now_ms, 1) / 1000 if found.state == "open" else 1,
        )

    def _take_probe(self, found: BreakerState) -> BreakerState:
        now = self._breakers.now_ms
        if found.state == "closed" or now < found.until_ms:
            return found
        return msgspec.structs.replace(found, state="half-open", probe=self._job, until_ms=now + self._probe_ms)

    async def _count(self, error: str) -> None:
        def change(found: BreakerState) -> BreakerState:
            failures = found.failures + 1
            is_probe = found.state == "half-open" and found.probe == self._job
            if found.state == "closed" and failures < self._options.failures:
                return msgspec.structs.replace(found, failures=failures, error=error)
            if found.state != "closed" and not is_probe:
                return found  # a call from before it opened
            until = self._breakers.now_ms + self._options.open_for_ms
            return BreakerState(self._type, self._key, "open", failures, until, error)

        before = await self._breakers.change(self._type, self._key, change)
        if before is not None and before.state == "closed" and before.failures + 1 >= self._options.failures:
            log.warning("the circuit breaker of %s %s opened: %s", self._type, self._key, error)

    async def _close(self, before: BreakerState) -> None:
        if before.state == "closed" and not before.failures:
            return  # as nearly always: nothing to write

        def change(found: BreakerState) -> BreakerState | None:
            is_mine = found.state == "closed" or found.probe == self._job
            return None if is_mine else found

        await self._breakers.change(self._type, self._key, change)

    async def _release(self) -> None:
        """Let another call probe, if this one did."""

        def change(found: BreakerState) -> BreakerState:
            if found.probe != self._job:
                return found
            return msgspec.structs.replace(found, state="open", probe="", until_ms=self._breakers.now_ms)

        await self._breakers.change(self._type, self._key, change)


def _place(type: str, key: str) -> str:
    shown = key if len(key) <= MAX_KEY_CHARS and key.isprintable() else digest(key.encode())
    return f"{BREAKERS}{type}/{shown}"
