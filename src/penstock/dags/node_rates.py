"""The rate limit of a node in a definition: it holds for all runs of its dag and all workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.errors import RateLimited
from ..core.stored import read_stored
from ..ports.unit import RateLimit, Refused, StateWrite, Unit

RATES = "dag-rate/"


class _Window(msgspec.Struct, array_like=True, frozen=True):
    start_ms: int
    count: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Window).decode


class NodeRateGate:
    """Counts the calls of one node. A call over the limit goes back to the queue without using an attempt."""

    def __init__(self, runtime: Runtime, dag: str, node: str, rate: RateLimit) -> None:
        self._runtime = runtime
        self._key = f"{RATES}{dag}/{node}"
        self._rate = rate

    async def call(self, run: Callable[[], Awaitable[Any]]) -> Any:
        """Call the executor, or raise RateLimited."""
        while not await self._take():
            pass  # another worker took a call at the same time
        return await run()

    async def _take(self) -> bool:
        row, now = await self._runtime.store.state(self._key), self._runtime.clock.now_ms()
        what = f"the rate limit {self._key.removeprefix(RATES)!r}"
        found = read_stored(_decode, row.value, what, "it starts again with the next window") if row else None
        if found is None or not 0 <= now - found.start_ms < self._rate.duration_ms:
            found = _Window(now, 0)
        end = found.start_ms + self._rate.duration_ms
        if found.count >= self._rate.max:
            limit = RateLimited((end - now) / 1000, f"rateLimit of the node: {self._rate.max} calls are made")
            limit.holds_queue = False
            raise limit
        value, version = _encode(_Window(found.start_ms, found.count + 1)), row.version if row is not None else 0
        unit = Unit(self._runtime.new_unit_id(), state=[StateWrite(self._key, value, version, end)])
        receipt = await self._runtime.committer.submit(CommitRequest(lambda _v, _r: unit))
        return not isinstance(receipt, Refused)


class Gates:
    """Several gates: the first one is the outermost."""

    def __init__(self, gates: list[Any]) -> None:
        self._gates = gates

    async def call(self, run: Callable[[], Awaitable[Any]]) -> Any:
        """Call the executor if every gate lets it."""
        for gate in reversed(self._gates):
            run = _through(gate, run)
        return await run()


def _through(gate: Any, run: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    return lambda: gate.call(run)
