"""Renew leases on a thread and a connection of their own: neither a blocked loop nor a long commit delays them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...core.errors import StoreUnavailable
from ...ports.unit import Claim
from .address import Address
from .connection import Connection, Connections, is_out_of_connections
from .statements import Statements

RETRY_DELAYS_S = (0.05, 0.1, 0.2, 0.4)  # until the connection that the pool gave up is free on the server


class LeaseRenewer:
    """Answers blocking calls from any thread, between `start` and `close`. It connects at the first call."""

    def __init__(self, address: Address, sql: Statements, give_up_connection: Callable[[], None]) -> None:
        self._address = replace(address, pool=1)
        self._sql = sql
        self._give_up_connection = give_up_connection  # called on the renewer's own thread
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._connections: Connections | None = None

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._connections = Connections(self._address)
        self._thread = threading.Thread(target=self._main, args=(self._loop,), name="penstock-leases", daemon=True)
        self._thread.start()

    def renew(self, claims: Sequence[Claim], now: int | None, lease_ms: int) -> list[Claim]:
        """Extend the leases. Return the claims that are lost."""
        if not claims:
            return []
        with self._mutex:
            if self._loop is None:
                raise StoreUnavailable(f"the store {self._address.shown} is not open")
            reply = asyncio.run_coroutine_threadsafe(self._renew(claims, now, lease_ms), self._loop)
        return [claims[n - 1] for n in reply.result()]

    async def _renew(self, claims: Sequence[Claim], now: int | None, lease_ms: int) -> list[int]:
        pks = [claim.handle for claim in claims]
        attempts = [claim.attempt for claim in claims]
        tokens = [claim.token for claim in claims]

        async def work(connection: Connection) -> list[int]:
            lost: list[int] = await connection.fetchval(self._sql.renew_leases, now, lease_ms, pks, attempts, tokens)
            return lost

        assert self._connections is not None
        for delay in RETRY_DELAYS_S:
            try:
                return await self._connections.run(work)
            except StoreUnavailable as problem:
                if not is_out_of_connections(problem):
                    raise
            # Leases come before reads: a lost lease means work done twice.
            if delay == RETRY_DELAYS_S[0]:
                self._give_up_connection()
            await asyncio.sleep(delay)
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
        """Stop the thread after it has answered the calls in progress."""
        with self._mutex:
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(_wait_for_others(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()


async def _wait_for_others() -> None:
    """Wait for every other task on this loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)
