"""Clients of Kafka: producer, consumer, and what they need to connect."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.helpers import create_ssl_context

from ...core.errors import BadArgument, BrokerUnavailable
from ...core.text import shorten

CONNECT_TIMEOUT_S = 10.0
NAME_HEADER = "name"
ID_HEADER = "id"
MAX_RECORDS = 100  # of all partitions in one batch
OUTAGES = (KafkaError, OSError, TimeoutError)


class KafkaAddress(msgspec.Struct, frozen=True):
    """The brokers, and how to connect to them."""

    brokers: str
    client_id: str
    options: Mapping[str, Any] = {}  # of SASL and TLS
    session_ms: int = 10_000  # a member of a group without a sign of life for this long loses its partitions

    def __str__(self) -> str:
        """Return the brokers for a message, without the password."""
        return f"kafka at {self.brokers}"

    @property
    def client_options(self) -> dict[str, Any]:
        return {"bootstrap_servers": self.brokers, "client_id": self.client_id, **self.options}


def read_address(brokers: Any, client_id: str, sasl: Mapping[str, str] | None, tls: Any) -> KafkaAddress:
    """Read the arguments of a connection."""
    text = brokers if isinstance(brokers, str) else ",".join(brokers) if isinstance(brokers, list | tuple) else ""
    if not text:
        raise BadArgument(f'brokers must be addresses such as "host:9092,host:9092", got {shorten(brokers)}')
    options: dict[str, Any] = {}
    if tls:
        files = {"ca": "cafile", "cert": "certfile", "key": "keyfile", "password": "password"}
        values = {} if tls is True else dict(tls)
        if unknown := sorted(set(values) - set(files)):
            raise BadArgument(f"unknown option {unknown[0]!r} of tls; the options are {', '.join(files)}")
        options["ssl_context"] = _make_context({files[name]: value for name, value in values.items()})
    if sasl is not None:
        names = {"mechanism", "username", "password"}
        if set(sasl) - names or not {"username", "password"} <= set(sasl):
            raise BadArgument(f"sasl requires username and password, and takes a mechanism; got {', '.join(sasl)}")
        options["sasl_mechanism"] = sasl.get("mechanism", "PLAIN")
        options["sasl_plain_username"], options["sasl_plain_password"] = sasl["username"], sasl["password"]
    protocol = ("SASL_" if sasl is not None else "") + ("SSL" if tls else "PLAINTEXT")
    return KafkaAddress(text, client_id, {**options, "security_protocol": protocol})


def _make_context(files: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context: ssl.SSLContext = create_ssl_context(**files)
    except (OSError, ssl.SSLError) as problem:
        raise BadArgument(f"tls: the files cannot be read ({problem}); use PEM files") from None
    return context


class Producer:
    """A producer that connects when it is first needed, and again after an outage."""

    def __init__(self, address: KafkaAddress) -> None:
        self._address = address
        self._client: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()

    async def send(
        self, topic: str, value: bytes, key: bytes | None, headers: Mapping[str, str], partition: int | None = None
    ) -> tuple[int, int]:
        """Send a record. Return its partition and its offset once every replica in sync has it."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S * 3):
                client = await self._connected()
                pairs = [(name, text.encode()) for name, text in headers.items()]
                done = await client.send_and_wait(topic, value, key, partition, headers=pairs)
        except OUTAGES as problem:
            raise BrokerUnavailable(
                f"cannot send to topic {topic!r} of {self._address} ({problem or type(problem).__name__}); check that "
                "the brokers are running"
            ) from problem
        return done.partition, done.offset

    async def partition_of(self, topic: str, key: bytes | None) -> int:
        """Return the partition that a key always has."""
        client = await self._connected()
        partitions = sorted(await client.partitions_for(topic))
        return int(partitions[zlib.crc32(key or b"") % len(partitions)])

    async def ping(self) -> None:
        """Request the metadata of the cluster, or raise BrokerUnavailable."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                client = await self._connected()
                if not await client.client.force_metadata_update():
                    raise KafkaError("no broker answers")
        except OUTAGES as problem:
            raise BrokerUnavailable(
                f"{self._address} does not answer ({problem or type(problem).__name__}); check that it is running"
            ) from problem

    async def _connected(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._client is None:
                client = AIOKafkaProducer(**self._address.client_options, acks="all")
                try:
                    await client.start()
                except BaseException:
                    await client.stop()
                    raise
                self._client = client
            return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.stop()


def make_consumer(address: KafkaAddress, group: str | None, start: str) -> AIOKafkaConsumer:
    """Return a consumer that commits nothing by itself."""
    return AIOKafkaConsumer(
        **address.client_options,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset=start,
        isolation_level="read_committed",
        max_poll_records=MAX_RECORDS,
        session_timeout_ms=address.session_ms,
        heartbeat_interval_ms=min(1_000, address.session_ms // 10),
        metadata_max_age_ms=10_000,
    )


@asynccontextmanager
async def reading(address: KafkaAddress, place: TopicPartition) -> AsyncIterator[AIOKafkaConsumer]:
    """Open a consumer of one partition, outside of any group."""
    client = make_consumer(address, None, "earliest")
    try:
        await client.start()
        client.assign([place])
        yield client
    finally:
        await client.stop()


async def end_of(address: KafkaAddress, topic: str, partition: int) -> int:
    """Return the offset that the next record of a partition gets."""
    place = TopicPartition(topic, partition)
    async with reading(address, place) as client:
        return int((await client.end_offsets([place]))[place])


async def lag_of(address: KafkaAddress, group: str, topic: str) -> int:
    """Return how many records of a topic a group has not consumed."""
    client = make_consumer(address, group, "earliest")
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await client.start()
            # Topics that nobody has asked for yet are not in the metadata.
            await client._client.add_topic(topic)
            places = [TopicPartition(topic, n) for n in client.partitions_for_topic(topic) or ()]
            client.assign(places)
            starts, ends = await client.beginning_offsets(places), await client.end_offsets(places)
            done = {place: await client.committed(place) for place in places}
    except OUTAGES as problem:
        raise BrokerUnavailable(f"{address} does not answer ({problem or type(problem).__name__})") from problem
    finally:
        await client.stop()
    return sum(ends[place] - (done[place] if done[place] is not None else starts[place]) for place in places)


async def has_record(address: KafkaAddress, topic: str, partition: int, start: int, id: str) -> bool:
    """Return whether a partition has a record with this id at an offset or after it."""
    place = TopicPartition(topic, partition)
    async with reading(address, place) as client:
        end = (await client.end_offsets([place]))[place]
        if end <= start:
            return False
        client.seek(place, start)
        while await client.position(place) < end:
            found = await client.getmany(timeout_ms=1000)
            if any(header_of(one, ID_HEADER) == id for records in found.values() for one in records):
                return True
    return False


def header_of(record: Any, name: str) -> str:
    """Return a header as text, "" if there is none."""
    values: Sequence[bytes] = [value for key, value in record.headers if key == name and value is not None]
    return values[0].decode(errors="replace") if values else ""
