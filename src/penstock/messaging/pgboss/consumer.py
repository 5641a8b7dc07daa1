"""Taking jobs out of pg-boss' queues.

A job that is handed over (a run started, an event told, a job added) is completed in the transaction that does so, if
both are in one database. Else, and for functions of the caller's, it is active meanwhile, as under a worker of pg-boss:
done again if we are gone, and fenced if we come too late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ...core.errors import AttemptTimeout, PayloadError, PenstockError, Permanent, StoreError
from ...core.payload import parse_json
from ...ports.bridge import BridgeHost, Message, WriteUnits
from ...stores.postgres import PostgresStore
from ...stores.postgres.connection import Connection, Connections
from .queues import Held, Queues
from .targets import Handler, Handover

log = logging.getLogger("penstock.pgboss")
AFTER_TROUBLE = 1.0  # seconds


class Consumer:
    """Takes the jobs of one queue to one target, one after the other."""

    def __init__(
        self,
        queue: str,
        target: Handover | Handler,
        hands: BridgeHost,
        queues: Queues,
        connections: Connections,
        shared: PostgresStore | None,
        poll: float,
    ) -> None:
        self._queue = queue
        self._target = target
        self._hands = hands
        self._queues = queues
        self._connections = connections
        self._shared = shared  # our store, if it is in the same database
        self._poll = poll

    async def run(self) -> None:
        while True:
            try:
                if not await self.take_one():
                    await self._connections.run(lambda c: self._queues.give_up_overdue(c, self._queue))
                    await asyncio.sleep(self._poll)
            except StoreError as problem:
                log.warning("pg-boss queue %r is left alone for now: %s", self._queue, problem)
                await asyncio.sleep(AFTER_TROUBLE)
            except Exception:
                log.exception("pg-boss queue %r is left alone for now", self._queue)
                await asyncio.sleep(AFTER_TROUBLE)

    async def take_one(self) -> bool:
        """Takes the next job as far as it goes; False if there was none."""
        if self._shared is not None and isinstance(self._target, Handover):
            return await self._shared.in_transaction(self._hand_over)
        held = await self._connections.run(lambda c: self._queues.claim(c, self._queue))
        if held is None:
            return False
        await self._work(held)
        return True

    async def _hand_over(self, connection: Connection, write: WriteUnits) -> bool:
        """One transaction: the job is claimed, what it starts is written, and it is completed."""
        held = await self._queues.claim(connection, self._queue)
        if held is None:
            return False
        try:
            async with connection.transaction():
                await self._taken(held, self._hands.with_writer(write))
        except PenstockError as problem:
            if isinstance(problem, StoreError):
                raise
            await self._failed(connection, held, problem)
        else:
            await self._queues.complete(connection, held)
        return True

    async def _work(self, held: Held) -> None:
        try:
            output = await self._in_time(held)
        except asyncio.CancelledError:
            # The worker stops: the next one need not wait until the job's time is up.
            await self._connections.run(lambda c: self._queues.give_back(c, held))
            raise
        except StoreError:
            raise  # it stays active: pg-boss gives it out again when its time is up
        except Exception as problem:
            caught = problem
            await self._connections.run(lambda c: self._failed(c, held, caught))
        else:
            if not await self._connections.run(lambda c: self._queues.complete(c, held, output)):
                log.warning("pg-boss job %s of queue %r was given to another before it was done", held.id, self._queue)

    async def _in_time(self, held: Held) -> Any:
        try:
            async with self._kept(held), asyncio.timeout(held.expires) as limit:
                return await self._taken(held, self._hands)
        except TimeoutError:
            if not limit.expired():
                raise
            raise AttemptTimeout(f"it took longer than its queue's expireInSeconds, {held.expires:g} s") from None

    async def _taken(self, held: Held, hands: BridgeHost) -> Any:
        data = parse_json(held.data, f"the data of pg-boss job {held.id}") if held.data is not None else None
        message = Message(held.id, self._queue, data, held.retries + 1)
        if not isinstance(self._target, Handover):
            return await self._target(message)
        await self._target.take(hands, message)
        return None

    async def _failed(self, connection: Connection, held: Held, problem: Exception) -> None:
        """What cannot be mended by trying again is not: it goes to the dead letters at once."""
        again = not isinstance(problem, Permanent | PayloadError)
        state = await self._queues.fail(connection, held, problem, again=again)
        log.warning("pg-boss job %s of queue %r: %s (%s)", held.id, self._queue, problem, state or "given to another")

    @asynccontextmanager
    async def _kept(self, held: Held) -> AsyncIterator[None]:
        """Shows the job as alive, if its queue asks for that."""
        if held.heartbeat is None:
            yield
            return
        beating = asyncio.create_task(self._beat(held, held.heartbeat / 3), name="penstock-pgboss-heartbeat")
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.wait((beating,))

    async def _beat(self, held: Held, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            try:
                await self._connections.run(lambda c: self._queues.touch(c, held))
            except StoreError as problem:
                log.warning("pg-boss job %s cannot be shown as alive: %s", held.id, problem)
