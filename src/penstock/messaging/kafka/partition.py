"""Consume one partition, one record after the other: the effect, retries with backoff, and the dead letter."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ...core.errors import BrokerUnavailable, Permanent
from ...core.payload import parse_json
from ...core.retry import RetryPolicy
from ...core.trace_context import HEADER, join_trace, read_carrier
from ...ports.bridge import BridgeHost, Message
from ...ports.store import Store
from ..failures import DeadLetters, build_dead_message, decide_retry, describe_problem, is_outage, urn_of
from ..targets import CommandTarget, MessageHandler, Routes
from .clients import ID_HEADER, NAME_HEADER, KafkaAddress, Producer, end_of, has_record, header_of
from .positions import DeadLetterMark, PartitionPosition, Position, PositionMoved, PositionWriter

log = logging.getLogger("penstock.kafka")
OUTAGE_WAIT_S = 0.5
MAX_CRASHES = 10  # of the process that handles a record, before the record is a dead letter
Record = Any  # of aiokafka, which has no types


class TopicOptions(msgspec.Struct, frozen=True):
    """How topics are consumed."""

    group: str
    retry: RetryPolicy
    dead_letters: DeadLetters


class Partition:
    """Applies the records of one partition in order."""

    def __init__(
        self,
        routes: Routes,
        position: PartitionPosition | None,
        host: BridgeHost | None,
        options: TopicOptions,
        producer: Producer,
        address: KafkaAddress,
        now_ms: Callable[[], int],
    ) -> None:
        self._routes = routes
        self._position = position  # None without an App: then nothing is saved but Kafka's own offset
        self._host = host
        self._options = options
        self._producer = producer
        self._address = address
        self._now_ms = now_ms
        self._value = Position()
        self._is_loaded = False
        self._rng = random.Random()

    async def apply(self, record: Record, end: Callable[[], Awaitable[int]]) -> None:
        """Apply a record, however often that takes. `end` returns the end of the partition."""
        while True:
            try:
                if not self._is_loaded:
                    await self._load(record, end)
                if record.offset <= self.position.offset:
                    return  # applied before
                if await self._try(record):
                    return
            except PositionMoved:
                self._is_loaded = False  # another process has this partition too, or our last write was applied
            except Exception as problem:
                if not is_outage(problem):
                    raise
                log.warning("record %s waits: %s", _id_of(record), problem)
                await asyncio.sleep(OUTAGE_WAIT_S)

    @property
    def position(self) -> Position:
        return self._position.value if self._position is not None else self._value

    async def _load(self, record: Record, end: Callable[[], Awaitable[int]]) -> None:
        if self._position is not None:
            await self._position.load()
            if self._position.value.offset >= record.offset and self._position.value.offset >= await end():
                log.warning(
                    "topic %r has fewer records than were applied, so it is a new one: its records are applied",
                    record.topic,
                )
                self._position.reset()
        self._is_loaded = True

    async def _save(self, value: Position) -> None:
        if self._position is not None:
            await self._position.save(value)
        else:
            self._value = value

    async def _try(self, record: Record) -> bool:
        """Make one attempt. Return whether the record is done with."""
        known = self.position.at(record.offset)
        message = Message(
            _id_of(record), record.topic, None, known.failures + 1, header_of(record, NAME_HEADER),
            f"kafka-{self._options.group}-{_id_of(record)}",
        )  # fmt: skip
        try:
            if record.value is not None:
                data = parse_json(record.value, f"the value of record {message.id}")
                message = msgspec.structs.replace(message, data=data)
            if known.dead is not None:
                raise Permanent("the process died while it sent the dead letter")
            if known.starts - known.failures >= MAX_CRASHES:
                raise Permanent(f"the process that handled the record died {known.starts - known.failures} times")
            where = (message.id, urn_of(message), known.failures + 1)
            log.debug("record %s (%s) is processed, attempt %d", *where)
            with join_trace(read_carrier({HEADER: header_of(record, HEADER)})):
                await self._deliver(record, message, known)
            log.debug("record %s (%s) was completed at attempt %d", *where)
        except (PositionMoved, asyncio.CancelledError):
            raise
        except Exception as problem:
            if is_outage(problem):
                raise
            return await self._fail(record, message, problem)
        return True

    async def _deliver(self, record: Record, message: Message, known: Position) -> None:
        target = self._routes.find(message)
        if isinstance(target, CommandTarget):
            await self._command(target, record, message)
            return
        await self._call(target, record, message, known)

    async def _command(self, target: CommandTarget, record: Record, message: Message) -> None:
        """Write the effect and the position in one commit."""
        assert self._host is not None  # resolve_routes checked it
        assert self._position is not None
        applied = Position(record.offset)
        writer = PositionWriter(self._position, applied)
        await target.deliver(self._host.with_writer(writer.write), message)
        if not writer.is_written:  # the effect exists already, and nothing was written
            await self._position.save(applied)

    async def _call(self, target: MessageHandler, record: Record, message: Message, known: Position) -> None:
        """Call a function. Its start is saved first, so that a record that kills its process is counted."""
        await self._save(msgspec.structs.replace(known, starts=known.starts + 1))
        await target(message)
        await self._save(Position(record.offset))

    async def _fail(self, record: Record, message: Message, problem: Exception) -> bool:
        """Count a failure and wait for the next attempt; after the last one, send the dead letter."""
        known = self.position.at(record.offset)
        failures, where = known.failures + 1, (message.id, urn_of(message))
        delay_ms = decide_retry(self._options.retry, problem, failures, self._rng) if known.dead is None else None
        if delay_ms is not None:
            log.warning("record %s (%s) failed at attempt %d: %s", *where, failures, describe_problem(problem))
            starts = max(known.starts, failures)
            await self._save(msgspec.structs.replace(known, failures=failures, starts=starts))
            await asyncio.sleep(delay_ms / 1000)
            return False
        if known.dead is None:
            log.error("record %s (%s) failed for good at attempt %d: %s", *where, failures, describe_problem(problem))
        if self._options.dead_letters.enabled:
            await self._send_dead_letter(record, message, problem, failures, known)
        await self._save(Position(record.offset))
        return True

    async def _send_dead_letter(
        self, record: Record, message: Message, problem: Exception, failures: int, known: Position
    ) -> None:
        """Send the dead letter once. The position names where it goes before it is sent: a process that comes after a
        kill looks there."""
        topic = record.topic + self._options.dead_letters.suffix
        while True:
            try:
                mark = known.dead
                if mark is None:
                    partition = await self._producer.partition_of(topic, record.key)
                    mark = DeadLetterMark(partition, await end_of(self._address, topic, partition))
                    known = msgspec.structs.replace(known, dead=mark)
                    await self._save(known)
                elif await has_record(self._address, topic, mark.partition, mark.start, message.id):
                    return
                body = build_dead_message(message, problem, self._now_ms(), failures)
                headers = {NAME_HEADER: f"{message.name}-failed", ID_HEADER: message.id}
                await self._producer.send(topic, body, record.key, headers, mark.partition)
                log.warning("record %s (%s) went to topic %r", message.id, urn_of(message), topic)
                return
            except (BrokerUnavailable, OSError) as outage:
                log.warning("the dead letter of record %s waits: %s", message.id, outage)
                await asyncio.sleep(OUTAGE_WAIT_S)


def make_position(store: Store | None, group: str, topic: str, partition: int) -> PartitionPosition | None:
    """Return the position of a partition in the App's store, None without an App."""
    return PartitionPosition(store, group, topic, partition) if store is not None else None


def _id_of(record: Record) -> str:
    return f"{record.topic}-{record.partition}-{record.offset}"
