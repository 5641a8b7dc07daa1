"""Consume topics as a member of a group: the partitions of this process, each in order, beside each other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from .clients import OUTAGES, KafkaAddress, make_consumer
from .partition import Partition, Record

log = logging.getLogger("penstock.kafka")
RECONNECT_WAIT_S = 0.5
POLL_MS = 200
MakePartition = Callable[[TopicPartition], Partition]


class TopicConsumer:
    """Consumes some topics in a group. A client that fails is replaced by a new one."""

    def __init__(
        self,
        topics: Iterable[str],
        address: KafkaAddress,
        group: str,
        start: str,
        make_partition: MakePartition,
        concurrency: int,
        grace_s: float,
    ) -> None:
        self._topics = list(topics)
        self._address = address
        self._group = group
        self._start = start
        self._make_partition = make_partition
        self._slots = asyncio.Semaphore(concurrency)
        self._grace_s = grace_s

    async def run(self, stopping: asyncio.Event) -> None:
        """Consume until stopped."""
        while not stopping.is_set():
            try:
                await self._run_client(stopping)
            except OUTAGES as problem:
                log.warning("cannot consume %s, trying again: %s", self._address, problem or type(problem).__name__)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), RECONNECT_WAIT_S)

    async def _run_client(self, stopping: asyncio.Event) -> None:
        client = make_consumer(self._address, self._group, self._start)
        owned = OwnedPartitions(client, self._make_partition, self._slots)
        try:
            await client.start()
            client.subscribe(self._topics, listener=owned)
            while not stopping.is_set():
                for place, records in (await client.getmany(timeout_ms=POLL_MS)).items():
                    owned.take(place, records)
                owned.check()
        finally:
            await owned.finish(self._grace_s if stopping.is_set() else 0)
            await _stop(client)


class OwnedPartitions(ConsumerRebalanceListener):  # type: ignore[misc]
    """The partitions that this process has now. Each is paused while its records are applied, so that a record that is
    retried holds up no other partition."""

    def __init__(self, client: AIOKafkaConsumer, make: MakePartition, slots: asyncio.Semaphore) -> None:
        self._client = client
        self._make = make
        self._slots = slots
        self._partitions: dict[TopicPartition, Partition] = {}
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._applied: dict[TopicPartition, int] = {}

    def take(self, place: TopicPartition, records: list[Record]) -> None:
        """Apply records of a partition, and fetch no more of it meanwhile."""
        self._client.pause(place)
        self._tasks[place] = asyncio.create_task(self._apply(place, records), name="penstock-kafka-partition")

    def check(self) -> None:
        """Raise what ended the work on a partition."""
        for place, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[place]
                task.result()

    async def _apply(self, place: TopicPartition, records: list[Record]) -> None:
        partition = self._partitions.setdefault(place, self._make(place))
        end = self._end_of(place)
        for record in records:
            async with self._slots:
                await partition.apply(record, end)
            self._applied[place] = record.offset + 1
        await self._commit([place])
        if place in self._client.assignment():
            self._client.resume(place)

    def _end_of(self, place: TopicPartition) -> Callable[[], Awaitable[int]]:
        async def end() -> int:
            return int((await self._client.end_offsets([place]))[place])

        return end

    async def _commit(self, places: Iterable[TopicPartition]) -> None:
        """Commit the offsets of what was applied. If that fails, the records come again and are skipped."""
        found: Mapping[TopicPartition, int] = {
            place: self._applied.pop(place) for place in places if place in self._applied
        }
        if not found:
            return
        try:
            await self._client.commit(found)
        except KafkaError as problem:
            log.info("the offsets of %s were not committed: %s", ", ".join(map(str, found)), problem)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Stop the work on partitions that go to another process, and commit their offsets."""
        await self._stop(revoked, 0)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        for place in assigned:
            self._partitions.pop(place, None)  # its position may have moved

    async def finish(self, grace_s: float) -> None:
        """Let the records in hand end, and commit."""
        await self._stop(list(self._tasks), grace_s)

    async def _stop(self, places: Iterable[TopicPartition], grace_s: float) -> None:
        places = list(places)
        tasks = [self._tasks.pop(place) for place in places if place in self._tasks]
        if tasks and grace_s:
            await asyncio.wait(tasks, timeout=grace_s)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                log.warning("the work on a partition ended with an error: %s", result)
        await self._commit(places)


async def _stop(client: AIOKafkaConsumer) -> None:
    try:
        await client.stop()
    except OUTAGES as problem:
        log.info("the consumer left its group without an answer: %s", problem)
