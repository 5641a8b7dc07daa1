"""Fault injection for stores, and a log of handler executions that is independent of the engine.

    store = FaultStore(SqliteStore(), FaultAt("commit", 3, "after"))

A call fails `before` it reaches the store, or `after` the store has executed it, so that only the answer is lost.
Callers cannot distinguish the two, and must not need to.
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

# The store calls of running work: a crash-point sweep must cover all of them.
HOT_PATH = ("commit", "claim", "renew")


class FaultInjector(Protocol):
    """Decides what happens to each call of a store: raise StoreUnavailable to fail it, wait to delay it."""

    async def on_call(self, method: str, when: When) -> None: ...

    def on_blocking_call(self, method: str, when: When) -> None:
        """Decide the same for the only blocking call, `renew`."""
        ...


class FaultStore:
    """A store whose calls pass through `faults` before and after they reach the inner store.

    `calls` counts calls by method, `in_flight` those inside the store. With `borrowed`, the owner of the inner store
    opens and closes it, so that several FaultStores can stand for several processes on one store.
    """

    def __init__(self, inner: Store, faults: FaultInjector, *, borrowed: bool = False) -> None:
        self.inner = inner
        self.faults = faults
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
        self.faults.on_blocking_call("renew", "before")
        lost = self.inner.renew(claims, lease_ms)
        self.faults.on_blocking_call("renew", "after")
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
            await self.faults.on_call(name, "before")
            self.in_flight += 1
            try:
                answer = await call(*args, **kwargs)
            finally:
                self.in_flight -= 1
            await self.faults.on_call(name, "after")
            return answer

        return wrapped


class NoFaults:
    """Injects nothing."""

    async def on_call(self, method: str, when: When) -> None:
        pass

    def on_blocking_call(self, method: str, when: When) -> None:
        pass


class FaultAt:
    """Fails the k-th call of one method, before or after the store executes it."""

    def __init__(self, method: str, k: int, when: When) -> None:
        self.method = method
        self.k = k
        self.when: When = when
        self.is_injected = False
        self._seen = 0

    async def on_call(self, method: str, when: When) -> None:
        self.on_blocking_call(method, when)

    def on_blocking_call(self, method: str, when: When) -> None:
        if method != self.method or self.is_injected:
            return
        if when == "before":
            self._seen += 1
        if self._seen == self.k and when == self.when:
            self.is_injected = True
            self.inject()

    def inject(self) -> None:
        raise StoreUnavailable(f"fault injected {self.when} call {self.k} of {self.method}")

    def __repr__(self) -> str:
        return f"{self.method}#{self.k}-{self.when}"


class EffectLog:
    """A file to which handlers append one line per execution; many processes may share it.

    One `write` to a file opened with O_APPEND is complete or absent, and survives the kill of its process.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._fd: int | None = None

    def record(self, ctx: Any) -> None:
        """Record that the handler of this `ctx` runs. Call it first in the handler."""
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
