"""The names of specification 002: `produce`, `consume`, `is_healthy` and `close`, by BullMQ and by Kafka."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer
from bullmq import Queue

import kafka_server
import redis_server
from penstock import App
from penstock.core.errors import BadArgument, StoreUnavailable
from penstock.entities import States, Transition, entity
from penstock.handlers.decorators import job
from penstock.messaging import AddJob, EmitToEntity
from penstock.messaging.bullmq import BullMQ
from penstock.messaging.kafka import Kafka
from penstock.ports.bridge import Message
from penstock.testing.until import until

TIMEOUT_S = 30
QUICK = {"retry": {"attempts": 2, "backoff": {"type": "fixed", "delayMs": 1}}}


class Bull:
    """A Redis and clients of its queues."""

    def __init__(self) -> None:
        self.url = redis_server.url()

    def make(self, **options: Any) -> BullMQ:
        return BullMQ(self.url, **{**QUICK, "poll": "20ms", **options})

    def create(self, queue: str) -> None: ...

    async def read(self, queue: str) -> list[tuple[str, Any]]:
        client = Queue(queue, {"connection": self.url})
        jobs = await client.getJobs(["waiting"])
        await client.close()
        return [(one.name, one.data) for one in jobs]

    def stop(self) -> None: ...


class Topics:
    """A broker and clients of its topics."""

    def __init__(self) -> None:
        self.broker = kafka_server.Broker()

    def make(self, **options: Any) -> Kafka:
        return Kafka(self.broker.address, **{"group": "g", **QUICK, **options})

    def create(self, queue: str) -> None:
        self.broker.create(queue, 1)

    async def read(self, queue: str) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []

        async def keep(message: Message) -> None:
            found.append((message.name, message.data))

        async with self.make(group="reader") as client:
            consumption = await client.consume(queue, keep)
            await until(lambda: found, TIMEOUT_S)
            await consumption.close()
        return found

    def stop(self) -> None:
        self.broker.stop()


@pytest_asyncio.fixture(params=[Bull, Topics])
async def system(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    one = request.param()
    one.create("billing")
    yield one
    one.stop()


@pytest.fixture
def bull() -> Bull:
    return Bull()


@pytest.mark.spec("002-3.1", "002-3.2", "002-4.5", "002-5.1", "002-6.1")
async def test_messages_that_are_sent_at_once_have_ids_of_their_own(system: Any) -> None:
    """Ids made of a name, a urn and a time in milliseconds collide: 1,000 messages would make a few."""
    seen: list[Any] = []

    async def take(message: Message) -> None:
        seen.append((message.id, message.name, message.data))

    async with system.make() as client:
        data = {"urn": "urn:order:7", "payload": {"amount": 3}}
        ids = await asyncio.gather(*(client.produce("billing", "paid", data) for _ in range(200)))
        assert len(set(ids)) == 200
        await client.consume("billing", take)
        await until(lambda: len(seen) == 200, TIMEOUT_S)
    assert sorted(one[0] for one in seen) == sorted(ids)
    assert all(one[1:] == ("paid", data) for one in seen)


@pytest.mark.spec("002-3.10", "002-5.1")
@pytest.mark.parametrize("data", [{"payload": 1}, {"urn": ""}, {"urn": "a", "extra": 1}])
async def test_what_is_sent_is_a_urn_and_a_payload(system: Any, data: Any) -> None:
    async with system.make() as client:
        with pytest.raises(BadArgument, match="a message for 'billing'"):
            await client.produce("billing", "paid", data)


@pytest.mark.spec("002-3.4")
async def test_an_error_of_produce_names_the_queue() -> None:
    away = redis_server.free_port()
    async with App(":memory:", bridges=[BullMQ(f"redis://127.0.0.1:{away}/0")]) as app:
        with pytest.raises(StoreUnavailable, match="'billing'"):
            await app._bridges[0].produce("billing", "paid", {"urn": "a"})  # type: ignore[attr-defined]
    async with Kafka(f"127.0.0.1:{away}") as client:
        with pytest.raises(StoreUnavailable, match="'billing'"):
            await client.produce("billing", "paid", {"urn": "a"})


@pytest.mark.spec("002-3.3", "002-2.5", "002-2.6", "002-2.7", "002-1.4")
async def test_the_options_of_a_job_are_bullmqs_own(bull: Bull) -> None:
    """Node's BullMQ retries and removes by the options that it finds with a job."""
    async with BullMQ(bull.url) as client:
        usual = await client.produce("billing", "paid", {"urn": "a"})
        retry = {"attempts": 7, "backoff": {"type": "fixed", "delayMs": 50, "jitter": False}}
        own = await client.produce("billing", "paid", {"urn": "a"}, retry=retry, keep_completed=True, keep_failed=False)
    queue = Queue("billing", {"connection": bull.url})
    jobs = {one.id: one.opts for one in await queue.getJobs(["waiting"])}
    await queue.close()
    assert jobs[usual]["attempts"] == 3
    assert jobs[usual]["backoff"] == {"type": "exponential", "delay": 30_000}
    assert (jobs[usual]["removeOnComplete"], jobs[usual]["removeOnFail"]) == (1000, 5000)
    assert (jobs[own]["attempts"], jobs[own]["backoff"]) == (7, {"type": "fixed", "delay": 50})
    assert not jobs[own].get("removeOnComplete")
    assert jobs[own]["removeOnFail"] is True


@pytest.mark.spec("002-9.2")
async def test_a_delayed_job_is_due_later(bull: Bull) -> None:
    async with bull.make() as client:
        await client.produce("billing", "paid", {"urn": "a"}, delay="1h")
        queue = Queue("billing", {"connection": bull.url})
        counts = await queue.getJobCounts("waiting", "delayed")
        await queue.close()
    assert counts == {"waiting": 0, "delayed": 1}


@pytest.mark.spec("002-3.5")
async def test_consume_takes_the_options_of_a_worker(system: Any) -> None:
    most, now, release = 0, 0, asyncio.Event()
    if isinstance(system, Topics):  # its order is that of a partition: what runs at once are partitions
        system.broker.create("wide", 3)
    queue = "wide" if isinstance(system, Topics) else "billing"

    async def handle(message: Message) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        if most == 3:
            release.set()
        await release.wait()
        now -= 1

    async with system.make(grace="30s") as client:
        await client.consume(queue, handle, {"concurrency": 3})
        for n in range(12):
            await client.produce(queue, "paid", {"urn": f"urn:order:{n}"})
        await asyncio.wait_for(release.wait(), TIMEOUT_S)
        with pytest.raises(BadArgument, match="unknown option 'concurency'"):
            await client.consume("billing", handle, {"concurency": 3})
    assert most == 3


@pytest.mark.spec("002-3.7", "002-5.7")
async def test_health_is_asked_on_a_connection_of_its_own(bull: Bull, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blocked or broken connection of the consumers says nothing about the server."""
    async with bull.make() as client:
        store = client._require_store()
        call, asked = store.client.call, asyncio.Event()

        async def hang(*_: Any) -> None:
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(store.client, "call", hang)
        assert await client.is_healthy()
        assert not asked.is_set()
        monkeypatch.undo()
        await until(lambda: _has_left(call), TIMEOUT_S)


async def _has_left(call: Any) -> bool:
    return b"name=penstock-health" not in await call("CLIENT", "LIST")


@pytest.mark.spec("002-3.9", "002-3.8", "002-6.1")
async def test_a_client_has_one_set_of_connections_and_makes_queues_when_they_are_used(bull: Bull) -> None:
    async def handle(message: Message) -> None: ...

    async with bull.make() as client:
        call = client._require_store().client.call
        assert await call("KEYS", "bull:*:meta") == []
        for n in range(5):
            await client.produce(f"q{n}", "paid", {"urn": "a"})
            await client.produce(f"q{n}", "paid", {"urn": "b"})
        assert len(await call("KEYS", "bull:q?:wait")) == 5
        before = (await call("CLIENT", "LIST")).count(b"name=penstock-")
        consumptions = [await client.consume(f"q{n}", handle) for n in range(5)]
        await until(lambda: _is_empty(call), TIMEOUT_S)
        assert (await call("CLIENT", "LIST")).count(
            b"name=penstock-"
        ) <= before + 2  # wake-ups and leases, shared by all
        assert all(one.is_running for one in consumptions)
    assert not any(one.is_running for one in consumptions)


async def _is_empty(call: Any) -> bool:
    return not await call("KEYS", "bull:q?:wait")


@pytest.mark.spec("002-3.13", "002-5.4", "002-8.5")
async def test_the_log_names_the_message_the_queue_and_the_urn(system: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def handle(message: Message) -> None:
        if message.data["payload"] == "poison":
            raise OSError("no luck")

    caplog.set_level(logging.DEBUG, "penstock")
    system.create("billing-dlq")
    async with system.make() as client:
        good = await client.produce("billing", "paid", {"urn": "urn:order:1", "payload": "a secret"})
        bad = await client.produce("billing", "paid", {"urn": "urn:order:2", "payload": "poison"})
        await client.consume("billing", handle)
        await until(lambda: "for good" in caplog.text, TIMEOUT_S)
        await until(lambda: "billing-dlq" in caplog.text, TIMEOUT_S)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("penstock")]
    for id, urn, words in (
        *((good, "urn:order:1", words) for words in ("was", "is processed", "was completed")),
        *(
            (bad, "urn:order:2", words)
            for words in ("failed at attempt 1", "failed for good at attempt 2", "billing-dlq")
        ),
    ):
        assert [line for line in lines if id in line and urn in line and "billing" in line and words in line], words
    assert "a secret" not in "".join(lines)
    assert "poison" not in "".join(lines)


@entity("invoice", queue="invoices", retry=QUICK["retry"])
class Invoice:
    states = States("open", idles=["open"], finals=["paid"])
    transitions = [
        Transition("pay", "open", "paid", conditions=[lambda _, payload: payload["amount"] > 0]),
        Transition("break", "open", "paid", actions=[lambda _: 1 / 0]),
    ]


@pytest.mark.spec("002-4.7", "002-6.2")
async def test_the_way_of_a_message(system: Any) -> None:
    """Added, claimed, emitted, loaded, moved, completed; or refused with a dead letter."""
    system.create("billing-dlq")
    bridge = system.make(consume={"billing": {"pay": EmitToEntity("pay"), "break": EmitToEntity("break")}})
    async with App(":memory:", handlers=[Invoice], bridges=[bridge]) as app, app.workers.background():
        await bridge.produce("billing", "break", {"urn": "urn:invoice:1"})
        await bridge.produce("billing", "pay", {"urn": "urn:invoice:1", "payload": {"amount": 7}})
        await bridge.produce("billing", "pay", {"urn": "urn:unknown:1", "payload": {"amount": 7}})
        await app.entities.wait_for("urn:invoice:1", "paid", timeout=TIMEOUT_S)
        view = await app.entities.get("urn:invoice:1")
        assert [(one.event, one.kind) for one in view.history] == [("break", "failed"), ("pay", "transitioned")]
        [(_, letter)] = await app.dead_letters.list("invoices")
        assert (letter.step, letter.attempts_made) == ("break", 2)
        ((name, record),) = await until(lambda: system.read("billing-dlq"), TIMEOUT_S)
        assert (name, record["originalData"]["urn"]) == ("pay-failed", "urn:unknown:1")
        assert record["attemptsMade"] >= 1


@pytest.mark.spec("002-8.8")
async def test_the_depth_of_a_queue_says_when_to_add_workers(system: Any) -> None:
    async def handle(message: Message) -> None: ...

    async with system.make() as client:
        assert await client.depth("billing") == 0
        for n in range(7):
            await client.produce("billing", "paid", {"urn": f"urn:order:{n}"})
        assert await client.depth("billing") == 7
        await client.consume("billing", handle, {"group": "g"} if isinstance(system, Topics) else {})

        async def is_empty() -> bool:
            return await client.depth("billing") == 0

        await until(is_empty, TIMEOUT_S)


@job(queue="sandbox", runner="process")
def in_a_child(input: Any) -> Any:
    import os

    return os.getpid()


@pytest.mark.spec("002-9.8")
async def test_a_message_may_be_handled_in_a_process_of_its_own(bull: Bull) -> None:
    import os

    bridge = bull.make(consume={"billing": AddJob("sandbox")})
    async with App(":memory:", handlers=[in_a_child], bridges=[bridge]) as app, app.workers.background():
        await bridge.produce("billing", "paid", {"urn": "a"})
        [done] = await until(lambda: app.jobs.list("sandbox", state="completed"), TIMEOUT_S)
    assert done.result != os.getpid()


async def test_kafka_takes_messages_of_other_programs() -> None:
    """Without a header with a name, and without a key."""
    broker, seen = kafka_server.Broker(), []
    broker.create("billing", 1)

    async def take(message: Message) -> None:
        seen.append((message.name, message.data))

    producer = AIOKafkaProducer(bootstrap_servers=broker.address)
    await producer.start()
    await producer.send_and_wait("billing", json.dumps({"urn": "a"}).encode())
    await producer.stop()
    async with Kafka(broker.address) as client:
        await client.consume("billing", take)
        await until(lambda: seen, TIMEOUT_S)
    assert seen == [("", {"urn": "a"})]
    broker.stop()
