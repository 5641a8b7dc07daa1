"""`BullMQ`: the bridge between an App and queues of BullMQ."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self

from ...core.clock import datetime_to_ms
from ...core.durations import Duration, to_ms
from ...core.errors import BadArgument, ConfigError, PenstockError, StoreError, StoreUnavailable
from ...core.ids import check_id, check_name, uuid7
from ...core.payload import pack
from ...core.retry import RetryOption, RetryPolicy
from ...core.text import shorten
from ...core.trace_context import current_trace, read_carrier
from ...ports.bridge import BridgeHost
from ...ports.store import FeedItem
from ...ports.unit import NewJob, PublishedOptions, RateLimit, Unit
from ...stores.redis import RedisStore
from ...stores.redis.address import Address, parse
from ...stores.redis.connection import Client
from ...stores.redis.connections import Connections
from ...stores.redis.server_checks import prefix_owner
from ...stores.redis.topology import Topology
from ..event_relay import EventRelay, job_id_of
from ..failures import DEFAULT_RETRY, DeadLetters
from ..options import read_dead_letters, read_keep, read_limiter
from ..services import Consumption, Loop, run_loops
from ..targets import Targets, check_entity_data, resolve_routes
from .consumer import Consumer, ConsumerOptions, check_concurrency, read_options

log = logging.getLogger("penstock.bullmq")
DEFAULT_PREFIX = "bull"
CONNECT_WAIT_S = 0.5  # between two attempts to connect


class BullMQ:
    """Connects queues of BullMQ to an App: `App(url, bridges=[BullMQ("redis://other", consume={"orders": …})])`.

    Without a URL it uses the queues of the App's own Redis store. Without an App, `async with BullMQ(url) as client`
    produces, and consumes with functions.

    Args:
        url: The Redis of the queues, with the options of a store's URL: TLS, login, Sentinel, Cluster, `?prefix=`.
            Default: the App's own Redis store.
        prefix: Prefix of BullMQ's keys. Default: that of the URL, else `bull`.
        consume: The target of each queue's jobs, or a mapping from the names of jobs to targets.
        produce: The queue that events are sent to, by the kind of the event.
        concurrency: Number of jobs of a queue at once in this process. With 1, all processes together take one job at a
            time, and the order of the queue holds.
        retry: Retry policy of jobs that have no `attempts` and `backoff` of their own.
        dead_letters: `True`, `False` or `{"enabled": …, "suffix": "-dlq"}`.
        keep_completed: Number of completed jobs that a queue keeps; `True` keeps all.
        keep_failed: The same for failed jobs.
        limiter: Maximum number of jobs per duration in all processes: `"100/1m"`, or BullMQ's
            `{"max": 100, "duration": 60000}`.
        lease: How long a job is held without a sign of life.
        poll: How often an idle queue is polled.
        grace: How long jobs in hand may take when the bridge stops; then they are given back.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str | None = None,
        consume: Mapping[str, Targets] | None = None,
        produce: Mapping[str, str] | None = None,
        concurrency: int = 1,
        retry: RetryOption = DEFAULT_RETRY,
        dead_letters: bool | Mapping[str, Any] | DeadLetters = True,
        keep_completed: int | bool = 1000,
        keep_failed: int | bool = 5000,
        limiter: str | Mapping[str, Any] | RateLimit | None = None,
        lease: Duration = "30s",
        poll: Duration = "200ms",
        grace: Duration = "10s",
    ) -> None:
        self._url = url
        self._prefix = prefix
        self._consume = dict(consume or {})
        self._produce = dict(produce or {})
        self._options = ConsumerOptions(
            RetryPolicy.parse(retry),
            read_dead_letters(dead_letters),
            read_keep(keep_completed, "keep_completed"),
            read_keep(keep_failed, "keep_failed"),
            check_concurrency(concurrency),
            read_limiter(limiter),
            to_ms(lease),
            to_ms(poll) / 1000,
        )
        self._grace_s = to_ms(grace) / 1000
        self._store: RedisStore | None = None
        self._is_shared = False  # the store is the App's: it closes it
        self._is_waiting = False  # the Redis was away when the App opened
        self._host: BridgeHost | None = None
        self._loops: list[Loop] = []
        self._consumptions: list[Consumption] = []

    # Opening and closing

    async def open(self, host: BridgeHost | None = None) -> None:
        """Check the targets and connect. The App calls this. With an App, a Redis that is away is waited for:
        `is_healthy` reports it."""
        self._host = host
        for queue, targets in self._consume.items():
            resolve_routes(queue, targets, host)
        try:
            await self._connect()
        except StoreUnavailable as problem:
            if host is None:
                raise
            self._is_waiting = True
            log.warning("the Redis of BullMQ does not answer, the bridge waits for it: %s", problem)

    async def _connect(self) -> None:
        store = self._shared_store(self._host)
        self._is_shared = store is not None
        self._store = store = store or await self._open_store()
        try:
            self._loops = [
                loop for queue, targets in self._consume.items() for loop in self._make_loops(queue, targets)
            ]
            if self._produce:
                relay = EventRelay(self._produce, self._require_host(), self._relay_key, self._send_event)
                await relay.start()
                self._loops.append(relay.run)
        except BaseException:
            await self.close()
            raise
        self._is_waiting = False

    async def run(self) -> None:
        """Consume and produce until cancelled. The App calls this."""
        while self._is_waiting:
            await asyncio.sleep(CONNECT_WAIT_S)
            with contextlib.suppress(StoreUnavailable):
                await self._connect()
                log.info("the Redis of BullMQ answers")
        await run_loops(self._loops, self._grace_s, "penstock-bullmq")

    async def close(self) -> None:
        """Stop what `consume` started, with the jobs in hand completed, and close the connections."""
        for one in self._consumptions:
            await one.close()
        self._consumptions.clear()
        if self._store is not None and not self._is_shared:
            await self._store.close()
        self._store = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def check(self) -> None:
        """Raise StoreUnavailable if the Redis of the queues does not answer."""
        if self._store is None:
            raise StoreUnavailable("the bridge to BullMQ is not open; open its App or start its worker first")
        client = Client(Topology(self._store.address), "penstock-health")  # those in use may be busy
        try:
            await client.call("PING")
        finally:
            await client.close()

    async def is_healthy(self) -> bool:
        """Return whether the Redis of the queues answers."""
        try:
            await self.check()
        except (PenstockError, OSError) as problem:
            log.warning("the Redis of BullMQ does not answer: %s", problem)
            return False
        return True

    async def depth(self, queue: str) -> int:
        """Return how many jobs of a queue wait for a worker.

        Args:
            queue: The queue.
        """
        store = self._require_store()
        key = f"{store.queue_prefix}:{queue}"
        lists = [await store.client.call("LLEN", f"{key}:{name}") for name in ("wait", "paused")]
        return int(sum(lists) + await store.client.call("ZCARD", f"{key}:prioritized"))

    # Messages

    async def produce(
        self,
        queue: str,
        job_name: str,
        data: Mapping[str, Any],
        *,
        id: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int = 0,
        retry: RetryOption | None = None,
        keep_completed: int | bool | None = None,
        keep_failed: int | bool | None = None,
    ) -> str:
        """Add a job for an entity and return its id.

        Args:
            queue: The queue.
            job_name: Name of the job: what happened.
            data: `{"urn": …, "payload": …}`.
            id: Id of the job; a job that exists is not added again. Default: a new one.
            delay: How long to wait before the job is due.
            at: When the job is due, instead of `delay`.
            priority: Lower runs first; 0 is first.
            retry: Retry policy of this job instead of the bridge's.
            keep_completed: Number of completed jobs to keep, instead of the bridge's.
            keep_failed: The same for failed jobs.
        """
        body = pack(check_entity_data(data, queue), f"the data of a job of queue {queue!r}")
        options: dict[str, Any] = {"retry": retry, "keep_completed": keep_completed, "keep_failed": keep_failed}
        options["trace"] = current_trace.get()
        added = await self._add(queue, job_name, body, id, self._due(delay, at), priority, options)
        log.info("job %s was added to queue %r (%s)", added, queue, data["urn"])
        return added

    async def consume(self, queue: str, handler: Targets, options: Mapping[str, Any] | None = None) -> Consumption:
        """Start to consume a queue and return a handle that stops it.

        Args:
            queue: The queue.
            handler: A function that gets each Message, a target, or a mapping from names of jobs to them.
            options: Options of the bridge for this queue: `concurrency` and `limiter`.
        """
        self._require_store()
        consumption = Consumption(queue, self._make_loops(queue, handler, options), self._grace_s)
        self._consumptions.append(consumption)
        return consumption

    async def _add(
        self, queue: str, name: str, body: bytes, id: str | None, due: int, priority: int, options: Mapping[str, Any]
    ) -> str:
        check_name(queue, "queue")
        try:
            store = self._require_store()
            job_id = check_id(id, "job id") if id is not None else uuid7(store.clock.now_ms())
            job = NewJob(job_id, queue, name, body, priority, due, published=self._publish(options))
            await store.commit([Unit(uuid7(store.clock.now_ms()), jobs=[job])])
        except StoreError as problem:
            raise type(problem)(f"cannot add a job to queue {queue!r} of BullMQ: {problem}") from problem
        return job_id

    def _publish(self, options: Mapping[str, Any]) -> PublishedOptions:
        """Return the options of a new job, as BullMQ's workers read them."""
        own, retry = self._options, options.get("retry")
        policy = own.retry if retry is None else RetryPolicy.parse(retry)
        completed, failed = options.get("keep_completed"), options.get("keep_failed")
        return PublishedOptions(
            policy.attempts,
            policy.backoff.type,
            policy.backoff.delay_ms,
            policy.backoff.jitter,
            own.keep_completed if completed is None else read_keep(completed, "keep_completed"),
            own.keep_failed if failed is None else read_keep(failed, "keep_failed"),
            options.get("trace"),
        )

    def _due(self, delay: Duration | None, at: datetime | None) -> int:
        if delay is not None and at is not None:
            raise BadArgument(f"pass either delay= or at=, not both; got delay={shorten(delay)} and at={shorten(at)}")
        if at is not None:
            return datetime_to_ms(at)
        return self._require_store().clock.now_ms() + to_ms(delay) if delay is not None else 0

    async def _send_event(self, queue: str, item: FeedItem) -> None:
        body = pack(item.event.data, f"the data of event {item.event.id}")
        options = {"trace": read_carrier(item.event.meta)}
        await self._add(queue, item.event.kind, body, job_id_of(item), 0, 0, options)

    # Parts

    def _make_loops(self, queue: str, targets: Targets, options: Mapping[str, Any] | None = None) -> list[Loop]:
        check_name(queue, "queue")
        if self._is_shared and self._host is not None and self._host.serves(queue):
            raise ConfigError(
                f"queue {queue!r} is on the App's own Redis store and a handler of the App takes its jobs; "
                "remove it from consume=, or rename one of the two"
            )
        routes = resolve_routes(queue, targets, self._host)
        chosen = read_options(self._options, options)
        return [
            Consumer(queue, routes, self._require_store(), self._host, chosen).run for _ in range(chosen.concurrency)
        ]

    def _shared_store(self, host: BridgeHost | None) -> RedisStore | None:
        """Return the App's store if the queues are its own."""
        store = host.store if host is not None and isinstance(host.store, RedisStore) else None
        if self._url is None:
            if store is None:
                raise ConfigError(
                    "BullMQ() without a URL uses the Redis of the App, but it has none; pass the URL of the queues"
                )
            return store if self._prefix in (None, store.queue_prefix) else None
        if store is None or self._address().connection_key != store.address.connection_key:
            return None
        if self._full_prefix() != store.queue_prefix:
            return None
        log.info("the queues of BullMQ with prefix %r are those of the App's own store", store.queue_prefix)
        return store

    def _address(self) -> Address:
        if self._url is not None:
            return parse(self._url)
        assert self._host is not None
        assert isinstance(self._host.store, RedisStore)
        return self._host.store.address

    def _full_prefix(self) -> str:
        return self._prefix or self._address().queue_prefix or DEFAULT_PREFIX

    async def _open_store(self) -> RedisStore:
        """Open the queues. Keys of ours beside them have the namespace that the prefix belongs to, if it has one."""
        address, prefix = self._address(), self._full_prefix()
        connections = Connections(address)
        url = self._url if self._url is not None else self._host.store.url  # type: ignore[union-attr]
        try:
            namespace = await prefix_owner(connections.client, prefix) or f"{prefix}-bridge"
            store = RedisStore(url, namespace=namespace, queue_prefix=prefix, connections=connections)
            await store.open()
        except BaseException:
            connections.drop_unused()
            raise
        return store

    @property
    def _relay_key(self) -> str:
        return f"bullmq/{self._full_prefix()}/relayed"

    def _require_store(self) -> RedisStore:
        if self._store is not None:
            return self._store
        if self._is_waiting:
            raise StoreUnavailable(f"{self._address()} with the queues of BullMQ does not answer; is it running?")
        raise ConfigError("this BullMQ is not open; pass it to an App as bridges=[…], or use `async with`")

    def _require_host(self) -> BridgeHost:
        if self._host is None:
            raise ConfigError("produce= sends events of an App; pass the bridge to an App as bridges=[…]")
        return self._host
