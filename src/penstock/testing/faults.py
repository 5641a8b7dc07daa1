"""Making a store fail on purpose, and a log of what really ran that the engine knows nothing of.

    store = FaultStore(SqliteStore(), FaultAt("commit", 3, "after"))

A call fails in one of two ways: `before` it reaches the store, or `after` the store has done what was asked, the
answer being lost. Callers cannot tell one from the other, and must not have to.
"""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from ..core.errors import StoreUnavailable
from ..ports.store import Signals, Store
from ..ports.unit import Claim
from .history import Effect

When = Literal["before", "after"]

# What running work asks of a store; a crash-point sweep that misses one of these has a hole.
HOT_PATH = ("commit", "claim", "renew")


class Weather(Protocol):
    """What befalls the calls of a store. Raising StoreUnavailable makes the call fail; waiting makes it late."""

    async def around(self, method: str, when: When) -> None: ...

    def blocking(self, method: str, when: When) -> None:
        """The same for the one call that blocks, `renew`."""
        ...


class FaultStore:
    """A store in bad weather: every call passes through `weather` on its way there and on its way back.

    `calls` counts them by method and `in_flight` those inside the store. Opening and closing are left to the owner of
    the inner store when `borrowed`, so that several can stand for several processes on one store.
    """

    def __init__(self, inner: Store, weather: Weather, *, borrowed: bool = False) -> None:
        self.inner = inner
        self.weather = weather
        self.calls: Counter[str] = Counter()
        self.in_flight = 0
        self._borrowed = borrowed

    @property
    def signals(self) -> Signals:
        return self.inner.signals

    async def open(self) -> None:
        if not self._borrowed:
            await self.inner.open()

    async def close(self) -> None:
        if not self._borrowed:
            await self.inner.close()

    def renew(self, claims: Sequence[Claim], lease_ms: int) -> list[Claim]:
        self.calls["renew"] += 1
        self.weather.blocking("renew", "before")
        lost = self.inner.renew(claims, lease_ms)
        self.weather.blocking("renew", "after")
        return lost

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name.startswith("_") or not inspect.iscoroutinefunction(found):
            return found
        wrapped = self._wrap(name, found)
        self.__dict__[name] = wrapped
        return wrapped

    def _wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            await self.weather.around(name, "before")
            self.in_flight += 1
            try:
                answer = await call(*args, **kwargs)
            finally:
                self.in_flight -= 1
            await self.weather.around(name, "after")
            return answer

        return wrapped


class Calm:
    """Nothing happens."""

    async def around(self, method: str, when: When) -> None:
        pass

    def blocking(self, method: str, when: When) -> None:
        pass


class FaultAt:
    """One fault: the k-th call of a method fails, before it is made or after it was."""

    def __init__(self, method: str, k: int, when: When) -> None:
        self.method = method
        self.k = k
        self.when: When = when
        self.struck = False
        self._seen = 0

    async def around(self, method: str, when: When) -> None:
        self.blocking(method, when)

    def blocking(self, method: str, when: When) -> None:
        if method != self.method or self.struck:
            return
        if when == "before":
            self._seen += 1
        if self._seen == self.k and when == self.when:
            self.struck = True
            self.strike()

    def strike(self) -> None:
        raise StoreUnavailable(f"fault injected {self.when} call {self.k} of {self.method}")

    def __repr__(self) -> str:
        return f"{self.method}#{self.k}-{self.when}"


class EffectLog:
    """A file that handlers append one line to each time they run; many processes may share it.

    One `write` to a file opened O_APPEND is whole or absent, and survives the kill of its process.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._fd: int | None = None

    def note(self, ctx: Any) -> None:
        """Records that the handler of this `ctx` runs; call it first."""
        step = ctx.step or ctx.queue
        self.append(Effect(ctx.run_id or "", step, ctx.job_id, ctx.attempt, ctx.idempotency_key()))

    def append(self, effect: Effect) -> None:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
        os.write(self._fd, msgspec.json.encode(effect) + b"\n")

    def read(self) -> list[Effect]:
        if not self.path.exists():
            return []
        return [msgspec.json.decode(line, type=Effect) for line in self.path.read_bytes().splitlines()]
