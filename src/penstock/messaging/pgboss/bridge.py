"""`PgBoss`: the bridge an App is given."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from ...core.clock import datetime_to_ms
from ...core.durations import Duration, to_ms
from ...core.errors import BadArgument, ConfigError, UnknownQueue
from ...ports.bridge import BridgeHost
from ...ports.store import Store
from ...stores.postgres import PostgresStore
from ...stores.postgres.address import Address, read_address
from ...stores.postgres.connection import Connection, Connections
from .consumer import Consumer
from .queues import Queues
from .relay import Relay
from .schema import PgBossSchema, Statements, check
from .targets import Target, resolve

STRICT = "key_strict_fifo"  # a policy by which the order of a key holds also over failures: not ours to keep


class PgBoss:
    """Joins the queues of a pg-boss 12 to an App: `App(url, bridges=[PgBoss(consume={"orders": StartFlow("shop")})])`.

    Without a URL it is in the App's own database. `consume` says what becomes of the jobs of a queue: StartFlow,
    EmitEvent, AddJob, a function marked with @flow, or an async function that is called with each Message. `produce`
    says which kinds of our events become jobs of which queue; `send` adds a job by hand. Consuming and producing go on
    while the App runs a worker.
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
            raise BadArgument(f"concurrency={concurrency!r}: give how many jobs of a queue may be under way, 1 or more")
        self._concurrency = concurrency
        self._poll = to_ms(poll) / 1000
        self._connections: Connections | None = None
        self._consumers: list[Consumer] = []
        self._relay: Relay | None = None

    async def open(self, hands: BridgeHost) -> None:
        """Checks the schema and its queues; called by the App."""
        address = self._address(hands)
        self._connections = connections = Connections(address)
        try:
            version = await connections.run(lambda c: check(c, self._sql, place_of(address)))
            await connections.run(self._check_queues)
        except BaseException:
            await self.close()
            raise
        self._queues = queues = Queues(self._sql, version)
        shared = shared_store(hands.store, address)
        self._consumers = [
            Consumer(queue, resolve(target, hands), hands, queues, connections, shared, self._poll)
            for queue, target in self._consume.items()
            for _ in range(self._concurrency)
        ]
        if self._produce:
            self._relay = Relay(self._produce, hands, queues, connections, self._sql.schema)
            await self._relay.begin()

    async def run(self) -> None:
        """Moves messages both ways until it is cancelled; called by the App."""
        async with asyncio.TaskGroup() as group:
            for consumer in self._consumers:
                group.create_task(consumer.run(), name="penstock-pgboss-consume")
            if self._relay is not None:
                group.create_task(self._relay.run(), name="penstock-pgboss-relay")

    async def close(self) -> None:
        """Lets go of its connections; called by the App."""
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
        """Adds a job to a queue of pg-boss and gives its id; None if that is there already, by its `id` (a UUID) or by
        its queue's policy.

        With `connection`, an asyncpg connection to that database, it is added in the caller's own transaction. What is
        not said is as the queue has it.
        """
        if at is not None and delay is not None:
            raise BadArgument(f"delay={delay!r} and at={at!r}: give one of them")
        connections = self._connections
        if connections is None:
            raise ConfigError("this PgBoss is not open: give it to an App with bridges=[…], and open that")

        async def work(on: Connection) -> str | None:
            due = datetime_to_ms(at) if at is not None else None
            if delay is not None:
                due = int(await on.fetchval("SELECT extract(epoch FROM now()) * 1000")) + to_ms(delay)
            return await self._queues.send(
                on, queue, data, id=id, priority=priority, due_ms=due, singleton_key=singleton_key,
                expire_seconds=_seconds(expire), retry_limit=retry_limit, retry_delay=_seconds(retry_delay),
                retry_backoff=retry_backoff, dead_letter=dead_letter,
            )  # fmt: skip

        return await (work(connection) if connection is not None else connections.run(work))

    async def _check_queues(self, connection: Connection) -> None:
        wanted = {*self._consume, *self._produce.values()}
        found = {row[0]: row[1] for row in await connection.fetch(self._sql.queues, sorted(wanted))}
        for queue in sorted(wanted):
            if queue not in found:
                raise UnknownQueue(
                    f"pg-boss has no queue {queue!r} in schema {self._sql.schema!r}: create it there, with "
                    f"boss.createQueue({queue!r}), or check the name"
                )
            if queue in self._consume and found[queue] == STRICT:
                raise PgBossSchema(
                    f"queue {queue!r} has the policy {STRICT}, which only pg-boss itself can keep: consume it in Node"
                )

    def _address(self, hands: BridgeHost) -> Address:
        if self._url is not None:
            return read_address(self._url)
        if not isinstance(hands.store, PostgresStore):
            raise ConfigError(
                "PgBoss() without a URL is for an App on Postgres, in the same database: give it the URL of pg-boss'"
            )
        return hands.store.address


def shared_store(store: Store, address: Address) -> PostgresStore | None:
    """The store, if it is in the same database."""
    return store if isinstance(store, PostgresStore) and place_of(store.address) == place_of(address) else None


def place_of(address: Address) -> str:
    """The database, without who looks at it and how."""
    parts = urlsplit(address.dsn)
    return f"{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"


def _seconds(duration: Duration | None) -> int | None:
    return None if duration is None else -(-to_ms(duration) // 1000)
