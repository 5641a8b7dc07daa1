"""Renewing leases on a thread and a connection of their own: neither a busy loop nor a long commit holds them up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...core.errors import StoreUnavailable
from ...ports.unit import Claim
from .address import Address
from .connection import Connection, Connections, crowded
from .statements import Statements

PAUSES = (0.05, 0.1, 0.2, 0.4)  # seconds until a place that was made is looked for again


class Keeper:
    """Answers blocking calls from any thread, between `start` and `close`. It connects when the first one comes."""

    def __init__(self, address: Address, sql: Statements, make_room: Callable[[], None]) -> None:
        self._address = replace(address, pool=1)
        self._sql = sql
        self._make_room = make_room  # called on the keeper's own thread
        self._door = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._connections: Connections | None = None

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._connections = Connections(self._address)
        self._thread = threading.Thread(target=self._main, args=(self._loop,), name="penstock-leases", daemon=True)
        self._thread.start()

    def renew(self, claims: Sequence[Claim], now: int | None, lease_ms: int) -> list[Claim]:
        if not claims:
            return []
        with self._door:
            if self._loop is None:
                raise StoreUnavailable(f"the store {self._address.shown} is not open")
            answer = asyncio.run_coroutine_threadsafe(self._renew(claims, now, lease_ms), self._loop)
        return [claims[n - 1] for n in answer.result()]

    async def _renew(self, claims: Sequence[Claim], now: int | None, lease_ms: int) -> list[int]:
        handles = [claim.handle for claim in claims]
        attempts = [claim.attempt for claim in claims]
        tokens = [claim.token for claim in claims]

        async def work(connection: Connection) -> list[int]:
            found: list[int] = await connection.fetchval(self._sql.renew, now, lease_ms, handles, attempts, tokens)
            return found

        assert self._connections is not None
        for pause in PAUSES:
            try:
                return await self._connections.run(work)
            except StoreUnavailable as problem:
                if not crowded(problem):
                    raise
            # Leases go before reads: a lost one is work done again.
            if pause == PAUSES[0]:
                self._make_room()
            await asyncio.sleep(pause)
        return await self._connections.run(work)

    def _main(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        finally:
            if self._connections is not None:
                loop.run_until_complete(self._connections.close())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def close(self) -> None:
        with self._door:
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(_others(), loop).result()  # calls under way are answered first
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()


async def _others() -> None:
    """Waits for everything else on this loop."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    if rest:
        await asyncio.wait(rest)
