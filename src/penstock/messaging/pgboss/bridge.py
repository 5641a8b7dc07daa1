"""`PgBoss`: the bridge between an App and pg-boss."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from ...core.clock import datetime_to_ms
from ...core.durations import Duration, to_ms
from ...core.errors import BadArgument, ConfigError, StoreUnavailable, UnknownQueue
from ...core.text import shorten
from ...ports.bridge import BridgeHost
from ...ports.store import Store
from ...stores.postgres import PostgresStore
from ...stores.postgres.address import Address, read_address
from ...stores.postgres.connection import Connection, Connections
from .consumer import Consumer
from .job_actions import Target, resolve_target
from .queues import Queues
from .relay import EventRelay
from .schema import PgBossSchema, Statements, check_schema

STRICT_FIFO_POLICY = "key_strict_fifo"  # keeps the order of a key over failures, which a bridge cannot


async def _ping(connection: Connection) -> None:
    await connection.fetchval("SELECT 1")


class PgBoss:
    """Connects the queues of pg-boss 12 to an App: `App(url, bridges=[PgBoss(consume={"orders": StartFlow("shop")})])`.

    Without a URL, it uses the App's own database. `consume` maps queues to targets: StartFlow, EmitEvent, AddJob, a
    function with @flow, or an async function that receives each Message. `produce` maps kinds of events to the queues
    they are sent to. `send` adds a job. The bridge consumes and produces while the App runs a worker.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        schema: str = "pgboss",
        consume: Mapping[str, Target] | None = None,
        produce: Mapping[str, str] | None = None,
        concurrency: int = 1,
        poll: Duration = "500ms",
    ) -> None:
        self._url = url
        self._sql = Statements(schema)
        self._consume = dict(consume or {})
        self._produce = dict(produce or {})
        if concurrency < 1:
            raise BadArgument(
                f"concurrency must be the number of concurrent jobs of a queue, 1 or more, got {shorten(concurrency)}"
            )
        self._concurrency = concurrency
        self._poll = to_ms(poll) / 1000
        self._connections: Connections | None = None
        self._consumers: list[Consumer] = []
        self._relay: EventRelay | None = None

    async def check(self) -> None:
        """Raise StoreUnavailable if the database of pg-boss does not answer."""
        if self._connections is None:
            raise StoreUnavailable("the bridge to pg-boss is not open; it opens with its App or its worker")
        await self._connections.run(_ping)

    async def open(self, host: BridgeHost) -> None:
        """Check the schema and its queues. The App calls this."""
        address = self._address(host)
        self._connections = connections = Connections(address)
        try:
            version = await connections.run(lambda c: check_schema(c, self._sql, database_of(address)))
            await connections.run(self._check_queues)
        except BaseException:
            await self.close()
            raise
        self._queues = queues = Queues(self._sql, version)
        shared = shared_store(host.store, address)
        self._consumers = [
            Consumer(queue, resolve_target(target, host), host, queues, connections, shared, self._poll)
            for queue, target in self._consume.items()
            for _ in range(self._concurrency)
        ]
        if self._produce:
            self._relay = EventRelay(self._produce, host, queues, connections, self._sql.schema)
            await self._relay.start()

    async def run(self) -> None:
        """Consume and produce until cancelled. The App calls this."""
        async with asyncio.TaskGroup() as group:
            for consumer in self._consumers:
                group.create_task(consumer.run(), name="penstock-pgboss-consume")
            if self._relay is not None:
                group.create_task(self._relay.run(), name="penstock-pgboss-relay")

    async def close(self) -> None:
        """Close the connections. The App calls this."""
        if self._connections is not None:
            await self._connections.close()
            self._connections = None

    async def send(
        self,
        queue: str,
        data: Any = None,
        *,
        id: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int = 0,
        singleton_key: str | None = None,
        expire: Duration | None = None,
        retry_limit: int | None = None,
        retry_delay: Duration | None = None,
        retry_backoff: bool | None = None,
        dead_letter: str | None = None,
        connection: Any = None,
    ) -> str | None:
        """Add a job to a queue of pg-boss and return its id.

        Return None if its `id` (a UUID) exists, or if the queue's policy allows no other job. With `connection`, an
        asyncpg connection to that database, the job is added in the caller's transaction. The queue's options are the
        defaults.
        """
        if at is not None and delay is not None:
            raise BadArgument(f"pass either delay= or at=, not both; got delay={shorten(delay)} and at={shorten(at)}")
        connections = self._connections
        if connections is None:
            raise ConfigError("this PgBoss is not open; pass it to an App as bridges=[…] and open the App")

        async def add(on: Connection) -> str | None:
            due = datetime_to_ms(at) if at is not None else None
            if delay is not None:
                due = int(await on.fetchval("SELECT extract(epoch FROM now()) * 1000")) + to_ms(delay)
            return await self._queues.send(
                on, queue, data, id=id, priority=priority, due_ms=due, singleton_key=singleton_key,
                expire_seconds=_seconds(expire), retry_limit=retry_limit, retry_delay=_seconds(retry_delay),
                retry_backoff=retry_backoff, dead_letter=dead_letter,
            )  # fmt: skip

        return await (add(connection) if connection is not None else connections.run(add))

    async def _check_queues(self, connection: Connection) -> None:
        names = {*self._consume, *self._produce.values()}
        found = {row[0]: row[1] for row in await connection.fetch(self._sql.queues, sorted(names))}
        for queue in sorted(names):
            if queue not in found:
                raise UnknownQueue(
                    f"pg-boss has no queue {queue!r} in schema {self._sql.schema!r}; check the name, or create "
                    f"the queue with boss.createQueue({queue!r})"
                )
            if queue in self._consume and found[queue] == STRICT_FIFO_POLICY:
                raise PgBossSchema(
                    f"queue {queue!r} has the policy {STRICT_FIFO_POLICY}, which only pg-boss supports; consume "
                    "it in Node"
                )

    def _address(self, host: BridgeHost) -> Address:
        if self._url is not None:
            return read_address(self._url)
        if not isinstance(host.store, PostgresStore):
            raise ConfigError(
                "PgBoss() without a URL requires an App on Postgres, in the same database; pass the URL of pg-boss"
            )
        return host.store.address


def shared_store(store: Store, address: Address) -> PostgresStore | None:
    """Return the store if it is in the same database."""
    return store if isinstance(store, PostgresStore) and database_of(store.address) == database_of(address) else None


def database_of(address: Address) -> str:
    """Return host, port and name of the database, without user and options."""
    parts = urlsplit(address.dsn)
    return f"{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"


def _seconds(duration: Duration | None) -> int | None:
    return None if duration is None else -(-to_ms(duration) // 1000)
