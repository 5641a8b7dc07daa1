"""`Kafka`: the bridge between an App and topics of Kafka."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import msgspec
from aiokafka import TopicPartition

from ...core.clock import SystemClock
from ...core.durations import Duration, to_ms
from ...core.errors import BadArgument, BrokerUnavailable, ConfigError, PenstockError
from ...core.payload import pack
from ...core.retry import RetryOption, RetryPolicy
from ...core.text import shorten
from ...core.trace_context import HEADER, current_trace, read_carrier
from ...ports.bridge import BridgeHost
from ...ports.store import FeedItem
from ..event_relay import EventRelay, job_id_of
from ..failures import DEFAULT_RETRY, DeadLetters
from ..options import read_dead_letters
from ..services import Consumption, Loop, run_loops
from ..targets import Routes, Targets, check_entity_data, resolve_routes
from .clients import ID_HEADER, NAME_HEADER, Producer, lag_of, read_address
from .consumer import TopicConsumer
from .partition import Partition, TopicOptions, make_position

log = logging.getLogger("penstock.kafka")


class Kafka:
    """Connects topics of Kafka to an App: `App(url, bridges=[Kafka("broker:9092", consume={"orders": …})])`.

    A record is a message: its value is JSON, its header `name` the name of the job. `produce` sends
    `{"urn": …, "payload": …}` with the urn as key, so that the messages of an entity stay in order.

    Args:
        brokers: Addresses of brokers: "host:9092,host:9092", or a list of them.
        client_id: Name of this program, for the brokers' logs and quotas.
        group: Name of the consumer group. Default: the client id.
        consume: The target of each topic's messages, or a mapping from the names of messages to targets.
        produce: The topic that events are sent to, by the kind of the event.
        concurrency: Number of partitions that this process applies at once.
        retry: Retry policy. While a message waits for its next attempt, its partition waits and the others go on.
        dead_letters: `True`, `False` or `{"enabled": …, "suffix": "-dlq"}`.
        start: Where a group that has committed nothing starts: `"earliest"` or `"latest"`.
        sasl: `{"mechanism": "SCRAM-SHA-512", "username": …, "password": …}`; the default mechanism is PLAIN.
        tls: True, or the files `{"ca": …, "cert": …, "key": …}`.
        session_timeout: How long the group waits for a process that shows no sign of life, before others take its
            partitions.
        grace: How long messages in hand may take when the bridge stops.
    """

    def __init__(
        self,
        brokers: str | Sequence[str],
        *,
        client_id: str = "penstock",
        group: str | None = None,
        consume: Mapping[str, Targets] | None = None,
        produce: Mapping[str, str] | None = None,
        concurrency: int = 10,
        retry: RetryOption = DEFAULT_RETRY,
        dead_letters: bool | Mapping[str, Any] | DeadLetters = True,
        start: Literal["earliest", "latest"] = "earliest",
        sasl: Mapping[str, str] | None = None,
        tls: bool | Mapping[str, str] = False,
        session_timeout: Duration = "10s",
        grace: Duration = "10s",
    ) -> None:
        address = read_address(brokers, client_id, sasl, tls)
        self._address = msgspec.structs.replace(address, session_ms=to_ms(session_timeout))
        self._consume = dict(consume or {})
        self._produce = dict(produce or {})
        self._options = TopicOptions(group or client_id, RetryPolicy.parse(retry), read_dead_letters(dead_letters))
        if start not in ("earliest", "latest"):
            raise BadArgument(f'start must be "earliest" or "latest", got {shorten(start)}')
        self._start = start
        self._concurrency = _check_concurrency(concurrency)
        self._grace_s = to_ms(grace) / 1000
        self._clock = SystemClock()
        self._host: BridgeHost | None = None
        self._producer: Producer | None = None
        self._loops: list[Loop] = []
        self._consumptions: list[Consumption] = []

    # Opening and closing

    async def open(self, host: BridgeHost | None = None) -> None:
        """Check the targets. The App calls this. Brokers that are away are waited for: `is_healthy` reports them."""
        self._host = host
        self._producer = Producer(self._address)
        self._loops = []
        if self._consume:
            routes = [resolve_routes(topic, targets, host) for topic, targets in self._consume.items()]
            self._loops.append(self._make_loop(routes, self._concurrency, self._options.group))
        if self._produce:
            if host is None:
                raise ConfigError("produce= sends events of an App; pass the bridge to an App as bridges=[…]")
            relay = EventRelay(self._produce, host, f"kafka/{self._options.group}/relayed", self._send_event)
            await relay.start()
            self._loops.append(relay.run)

    async def run(self) -> None:
        """Consume and produce until cancelled. The App calls this."""
        await run_loops(self._loops, self._grace_s, "penstock-kafka")

    async def close(self) -> None:
        """Stop what `consume` started, with the messages in hand completed, and close the connections."""
        for one in self._consumptions:
            await one.close()
        self._consumptions.clear()
        if self._producer is not None:
            await self._producer.close()
            self._producer = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def check(self) -> None:
        """Raise BrokerUnavailable if no broker answers a request for metadata."""
        if self._producer is None:
            raise BrokerUnavailable("the bridge to Kafka is not open; open its App or start its worker first")
        await self._producer.ping()

    async def is_healthy(self) -> bool:
        """Return whether a broker answers a request for metadata."""
        try:
            await self.check()
        except (PenstockError, OSError) as problem:
            log.warning("Kafka does not answer: %s", problem)
            return False
        return True

    async def depth(self, queue: str) -> int:
        """Return how many messages of a topic the group has not consumed yet.

        Args:
            queue: The topic.
        """
        return await lag_of(self._address, self._options.group, queue)

    # Messages

    async def produce(self, queue: str, job_name: str, data: Mapping[str, Any], *, id: str | None = None) -> str:
        """Send a message for an entity, with its urn as the key. Return `<topic>-<partition>-<offset>`.

        Args:
            queue: The topic.
            job_name: Name of the message: what happened.
            data: `{"urn": …, "payload": …}`.
            id: Sent as the header `id`, for consumers that deduplicate by it.
        """
        checked = check_entity_data(data, queue)
        body = pack(checked, f"the data of a message of topic {queue!r}")
        headers = {NAME_HEADER: job_name, **({ID_HEADER: id} if id is not None else {})}
        if (trace := current_trace.get()) is not None:
            headers[HEADER] = trace
        partition, offset = await self._require_producer().send(queue, body, checked["urn"].encode(), headers)
        log.info("message %s-%d-%d was sent (%s)", queue, partition, offset, checked["urn"])
        return f"{queue}-{partition}-{offset}"

    async def consume(self, queue: str, handler: Targets, options: Mapping[str, Any] | None = None) -> Consumption:
        """Start to consume a topic and return a handle that stops it.

        Args:
            queue: The topic.
            handler: A function that gets each Message, a target, or a mapping from names of messages to them.
            options: Options of the bridge for this topic: `concurrency` and `group`. Default of the group: the bridge's
                group and the topic, so that two calls do not take each other's partitions.
        """
        self._require_producer()
        values = dict(options or {})
        concurrency = _check_concurrency(values.pop("concurrency", self._concurrency))
        group = values.pop("group", f"{self._options.group}-{queue}")
        if values:
            raise BadArgument(f"unknown option {next(iter(values))!r}; the options are concurrency and group")
        loop = self._make_loop([resolve_routes(queue, handler, self._host)], concurrency, group)
        consumption = Consumption(queue, [loop], self._grace_s)
        self._consumptions.append(consumption)
        return consumption

    async def _send_event(self, topic: str, item: FeedItem) -> None:
        body = pack(item.event.data, f"the data of event {item.event.id}")
        data = item.event.data
        urn = data.get("urn") if isinstance(data, Mapping) else None
        key = urn if isinstance(urn, str) else item.stream
        headers = {NAME_HEADER: item.event.kind, ID_HEADER: job_id_of(item)}
        if (trace := read_carrier(item.event.meta)) is not None:
            headers[HEADER] = trace
        await self._require_producer().send(topic, body, key.encode(), headers)

    # Parts

    def _make_loop(self, routes: Iterable[Routes], concurrency: int, group: str) -> Loop:
        by_topic = {one.queue: one for one in routes}
        options = msgspec.structs.replace(self._options, group=group)
        store = self._host.store if self._host is not None else None
        producer = self._require_producer()

        def make(place: TopicPartition) -> Partition:
            position = make_position(store, group, place.topic, place.partition)
            now_ms = self._clock.now_ms if store is None else store.clock.now_ms
            return Partition(by_topic[place.topic], position, self._host, options, producer, self._address, now_ms)

        return TopicConsumer(by_topic, self._address, group, self._start, make, concurrency, self._grace_s).run

    def _require_producer(self) -> Producer:
        if self._producer is None:
            raise ConfigError("this Kafka is not open; pass it to an App as bridges=[…], or use `async with`")
        return self._producer


def _check_concurrency(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 1000:
        raise BadArgument(f"concurrency must be the number of partitions at once, 1 to 1000, got {shorten(value)}")
    return value
