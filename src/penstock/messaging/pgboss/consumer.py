"""Consume jobs from the queues of pg-boss.

If pg-boss and the store are in one database, one transaction starts the run, emits the event or enqueues the job, and
completes the job of pg-boss. Otherwise, and for functions of the caller, the job is active meanwhile, as under a worker
of pg-boss: it is retried if this process dies, and fenced if this process is too late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from ...core.errors import AttemptTimeout, PayloadError, Permanent, StoreError
from ...ports.bridge import BridgeHost, Message, WriteUnits
from ...stores.postgres import PostgresStore
from ...stores.postgres.connection import CUT, Connection, Connections
from ..targets import CommandTarget, Routes, deliver_when_up
from .queues import ActiveJob, Queues, describe_error, is_row_error

log = logging.getLogger("penstock.pgboss")
RETRY_WAIT_S = 1.0  # after an error
MIN_HEARTBEAT_INTERVAL_S = 0.5


class Consumer:
    """Delivers the jobs of one queue to one target, one after the other."""

    def __init__(
        self,
        queue: str,
        routes: Routes,
        host: BridgeHost | None,
        queues: Queues,
        connections: Connections,
        shared: PostgresStore | None,
        poll: float,
    ) -> None:
        self._queue = queue
        self._routes = routes
        self._host = host
        self._queues = queues
        self._connections = connections
        self._shared = shared  # the store, if it is in the same database
        self._poll = poll

    async def run(self, stopping: asyncio.Event) -> None:
        """Consume until stopped."""
        while not stopping.is_set():
            try:
                if not await self.consume_one():
                    await self._connections.run(lambda c: self._queues.fail_overdue(c, self._queue))
                    await asyncio.sleep(self._poll)
            except StoreError as problem:
                log.warning(
                    "cannot consume pg-boss queue %r, trying again in %.0f s: %s", self._queue, RETRY_WAIT_S, problem
                )
                await asyncio.sleep(RETRY_WAIT_S)
            except Exception:
                log.exception("cannot consume pg-boss queue %r, trying again in %.0f s", self._queue, RETRY_WAIT_S)
                await asyncio.sleep(RETRY_WAIT_S)

    async def consume_one(self) -> bool:
        """Claim and deliver the next job. Return False if none is due."""
        if self._shared is not None and all(isinstance(one, CommandTarget) for one in self._routes.by_name.values()):
            return await self._shared.in_transaction(self._consume_in_transaction)
        job = await self._connections.run(lambda c: self._queues.claim(c, self._queue))
        if job is None:
            return False
        await self._consume(job)
        return True

    async def _consume_in_transaction(self, connection: Connection, write: WriteUnits) -> bool:
        """Claim the job, write what it starts, and complete it, in one transaction."""
        job = await self._queues.claim(connection, self._queue)
        if job is None:
            return False
        try:
            async with connection.transaction():
                assert self._host is not None  # command targets have one
                await self._deliver(job, self._host.with_writer(write))
        except Exception as problem:
            if _is_outage(problem):
                raise
            await self._fail(connection, job, problem)
        else:
            await self._queues.complete(connection, job)
        return True

    async def _consume(self, job: ActiveJob) -> None:
        try:
            output = await self._deliver_in_time(job)
            is_ours = await self._connections.run(lambda c: self._queues.complete(c, job, output))
        except asyncio.CancelledError:
            # The worker stops: release the job, so that the next worker need not wait until it expires.
            await self._connections.run(lambda c: self._queues.release(c, job))
            raise
        except Exception as problem:
            if isinstance(problem, StoreError) and not is_row_error(problem):
                raise  # the job stays active: pg-boss retries it when it expires
            caught = problem
            await self._connections.run(lambda c: self._fail(c, job, caught))
        else:
            if not is_ours:
                log.warning(
                    "another worker claimed pg-boss job %s of queue %r before it completed", job.id, self._queue
                )

    async def _deliver_in_time(self, job: ActiveJob) -> Any:
        try:
            async with self._keep_alive(job), asyncio.timeout(job.expire_seconds) as limit:
                return await self._deliver(job, self._host)
        except TimeoutError:
            if not limit.expired():
                raise
            raise AttemptTimeout(
                f"the job took longer than the expireInSeconds of its queue, {job.expire_seconds:g} s"
            ) from None

    async def _deliver(self, job: ActiveJob, host: BridgeHost | None) -> Any:
        data = job.read_data()
        message = Message(job.id, self._queue, data, job.retries + 1, read_name(data))
        target = self._routes.find(message)
        if not isinstance(target, CommandTarget):
            return await target(message)
        assert host is not None  # resolve_routes checked it
        if host is self._host:
            await deliver_when_up(target, host, message)
        else:  # in a transaction, which an outage ends
            await target.deliver(host, message)
        return None

    async def _fail(self, connection: Connection, job: ActiveJob, problem: Exception) -> None:
        """Fail the job. An error that no retry can fix dead-letters it at once."""
        may_retry = not isinstance(problem, Permanent | PayloadError)
        state = await self._queues.fail(connection, job, problem, may_retry=may_retry)
        text = describe_error(problem) or type(problem).__name__
        log.warning(
            "pg-boss job %s of queue %r: %s (%s)", job.id, self._queue, text, state or "claimed by another worker"
        )

    @asynccontextmanager
    async def _keep_alive(self, job: ActiveJob) -> AsyncIterator[None]:
        """Send heartbeats, if the queue requires them."""
        if job.heartbeat_seconds is None:
            yield
            return
        every = max(job.heartbeat_seconds / 3, MIN_HEARTBEAT_INTERVAL_S)
        task = asyncio.create_task(self._send_heartbeats(job, every), name="penstock-pgboss-heartbeat")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))

    async def _send_heartbeats(self, job: ActiveJob, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            try:
                await self._connections.run(lambda c: self._queues.touch(c, job))
            except StoreError as problem:
                log.warning("cannot send a heartbeat for pg-boss job %s: %s", job.id, problem)


def read_name(data: Any) -> str:
    """Return the name of a message: pg-boss has none of its own, so `produce` sends it as `jobName`."""
    name = data.get("jobName") if isinstance(data, dict) else None
    return name if isinstance(name, str) else ""


def _is_outage(problem: Exception) -> bool:
    """Return whether a transaction failed for a reason that is not its job: the same job may succeed later."""
    return isinstance(problem, (StoreError, asyncpg.PostgresError, OSError, *CUT)) and not is_row_error(problem)
