"""`PgBoss`: the bridge between an App and pg-boss."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from datetime import datetime
from typing import Any, Self
from urllib.parse import urlsplit

from ...core.clock import datetime_to_ms
from ...core.durations import Duration, to_ms
from ...core.errors import (
    BadArgument,
    ConfigError,
    PenstockError,
    PgBossSchema,
    StoreError,
    StoreUnavailable,
    UnknownQueue,
)
from ...core.text import shorten
from ...ports.bridge import BridgeHost
from ...ports.store import FeedItem, Store
from ...stores.postgres import PostgresStore
from ...stores.postgres.address import Address, read_address
from ...stores.postgres.connection import Connection, Connections
from ..event_relay import EventRelay, job_id_of
from ..services import Consumption, Loop, run_loops
from ..targets import Targets, check_entity_data, resolve_routes
from .consumer import Consumer
from .queues import Queues, is_row_error
from .schema import Statements, check_schema

log = logging.getLogger("penstock.pgboss")
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
        consume: Mapping[str, Targets] | None = None,
        produce: Mapping[str, str] | None = None,
        concurrency: int = 1,
        poll: Duration = "500ms",
        grace: Duration = "10s",
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
        self._grace_s = to_ms(grace) / 1000
        self._connections: Connections | None = None
        self._loops: list[Loop] = []
        self._consumptions: list[Consumption] = []
        self._host: BridgeHost | None = None

    async def check(self) -> None:
        """Raise StoreUnavailable if the database of pg-boss does not answer."""
        if self._connections is None:
            raise StoreUnavailable("the bridge to pg-boss is not open; open its App or start its worker first")
        await self._connections.run(_ping)

    async def is_healthy(self) -> bool:
        """Return whether the database of pg-boss answers."""
        try:
            await self.check()
        except (PenstockError, OSError) as problem:
            log.warning("the database of pg-boss does not answer: %s", problem)
            return False
        return True

    async def depth(self, queue: str) -> int:
        """Return how many jobs of a queue wait for a worker. Those that are not due yet do not count.

        Args:
            queue: The queue.
        """
        connections = self._require_connections()
        await connections.run(lambda c: self._check_queues(c, {queue}, set()))
        return await connections.run(lambda c: self._queues.depth(c, queue))

    async def open(self, host: BridgeHost | None = None) -> None:
        """Check the schema and its queues. The App calls this."""
        self._host = host
        address = self._address(host)
        self._connections = connections = Connections(address)
        try:
            version = await connections.run(lambda c: check_schema(c, self._sql, database_of(address)))
            await connections.run(self._check_own_queues)
        except BaseException:
            await self.close()
            raise
        self._queues = Queues(self._sql, version)
        self._shared = shared_store(host.store, address) if host is not None else None
        self._loops = [
            loop
            for queue, targets in self._consume.items()
            for loop in self._make_loops(queue, targets, self._concurrency)
        ]
        if self._produce:
            if host is None:
                raise ConfigError("produce= sends events of an App; pass the bridge to an App as bridges=[…]")
            relay = EventRelay(self._produce, host, f"pgboss/{self._sql.schema}/relayed", self._send_event, _may_skip)
            await relay.start()
            self._loops.append(relay.run)

    async def run(self) -> None:
        """Consume and produce until cancelled. The App calls this."""
        await run_loops(self._loops, self._grace_s, "penstock-pgboss")

    async def close(self) -> None:
        """Stop what `consume` started and close the connections. The App calls this."""
        for one in self._consumptions:
            await one.close()
        self._consumptions.clear()
        if self._connections is not None:
            await self._connections.close()
            self._connections = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def produce(self, queue: str, job_name: str, data: Mapping[str, Any], **options: Any) -> str | None:
        """Add a job for an entity, and return its id. The name is in the job's data, as `jobName`.

        Args:
            queue: The queue.
            job_name: Name of the job: what happened.
            data: `{"urn": …, "payload": …}`.
            options: As for `send`.
        """
        return await self.send(queue, {**check_entity_data(data, queue), "jobName": job_name}, **options)

    async def consume(self, queue: str, handler: Targets, options: Mapping[str, Any] | None = None) -> Consumption:
        """Start to consume a queue and return a handle that stops it.

        Args:
            queue: The queue.
            handler: A function that gets each Message, a target, or a mapping from names of jobs to them.
            options: Options of the bridge for this queue: `concurrency`.
        """
        connections = self._require_connections()
        values = dict(options or {})
        concurrency = values.pop("concurrency", self._concurrency)
        if values:
            raise BadArgument(f"unknown option {next(iter(values))!r}; the option is concurrency")
        await connections.run(lambda c: self._check_queues(c, {queue}, {queue}))
        consumption = Consumption(queue, self._make_loops(queue, handler, concurrency), self._grace_s)
        self._consumptions.append(consumption)
        return consumption

    def _make_loops(self, queue: str, targets: Targets, concurrency: int) -> list[Loop]:
        routes, connections = resolve_routes(queue, targets, self._host), self._require_connections()
        return [
            Consumer(queue, routes, self._host, self._queues, connections, self._shared, self._poll).run
            for _ in range(concurrency)
        ]

    async def _send_event(self, queue: str, item: FeedItem) -> None:
        id = job_id_of(item)
        await self._require_connections().run(lambda c: self._queues.send(c, queue, item.event.data, id=id))

    def _require_connections(self) -> Connections:
        if self._connections is None:
            raise ConfigError("this PgBoss is not open; pass it to an App as bridges=[…] and open the App")
        return self._connections

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
        connections = self._require_connections()

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

    async def _check_own_queues(self, connection: Connection) -> None:
        await self._check_queues(connection, {*self._consume, *self._produce.values()}, self._consume.keys())

    async def _check_queues(self, connection: Connection, names: Set[str], consumed: Set[str]) -> None:
        found = {row[0]: row[1] for row in await connection.fetch(self._sql.queues, sorted(names))}
        for queue in sorted(names):
            if queue not in found:
                raise UnknownQueue(
                    f"pg-boss has no queue {queue!r} in schema {self._sql.schema!r}; check the name, or create "
                    f"the queue with boss.createQueue({queue!r})"
                )
            if queue in consumed and found[queue] == STRICT_FIFO_POLICY:
                raise PgBossSchema(
                    f"queue {queue!r} has the policy {STRICT_FIFO_POLICY}, which only pg-boss supports; consume "
                    "it in Node"
                )

    def _address(self, host: BridgeHost | None) -> Address:
        if self._url is not None:
            return read_address(self._url)
        if host is None or not isinstance(host.store, PostgresStore):
            raise ConfigError(
                "PgBoss() without a URL uses the database of the App, which must be Postgres; pass the URL of pg-boss"
            )
        return host.store.address


def shared_store(store: Store, address: Address) -> PostgresStore | None:
    """Return the store if it is in the same database."""
    return store if isinstance(store, PostgresStore) and database_of(store.address) == database_of(address) else None


def database_of(address: Address) -> str:
    """Return host, port and name of the database, without user and options."""
    parts = urlsplit(address.dsn)
    return f"{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"


def _may_skip(problem: PenstockError) -> bool:
    return not isinstance(problem, StoreError) or is_row_error(problem)


def _seconds(duration: Duration | None) -> int | None:
    return None if duration is None else -(-to_ms(duration) // 1000)
