"""Events of an App become messages of BullMQ and Kafka, once each, also after a restart; and options of jobs and queues."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from bullmq import Queue
from test_spec_names import Bull, Topics

import redis_server
from penstock import App
from penstock.core.errors import BadArgument, ConfigError
from penstock.handlers.decorators import flow
from penstock.messaging.bullmq import BullMQ
from penstock.messaging.bullmq.job_fields import JobFields
from penstock.messaging.failures import DEFAULT_RETRY, build_dead_message
from penstock.messaging.options import read_dead_letters, read_keep, read_limiter
from penstock.ports.bridge import Message
from penstock.ports.unit import KeepJobs, RateLimit
from penstock.testing.until import until

TIMEOUT_S = 30


@flow("sale")
async def sale(n: int, ctx: Any) -> None:
    ctx.emit("invoice.sent", {"n": n})


@pytest.mark.parametrize("kind", [Bull, Topics])
async def test_events_become_messages_once(kind: Any, tmp_path: Path) -> None:
    system, seen = kind(), []
    system.create("letters")

    async def take(message: Message) -> None:
        seen.append((message.name, message.data["n"]))

    url = f"sqlite:///{tmp_path}/p.db"
    async with system.make(group="reader") if kind is Topics else system.make() as client:
        await client.consume("letters", take)
        for first in (0, 5):  # a restart in between
            bridge = system.make(produce={"invoice.sent": "letters"})
            async with App(url, handlers=[sale], bridges=[bridge]) as app, app.workers.background():
                for n in range(first, first + 5):
                    await app.start("sale", n)
                await until(lambda first=first: len(seen) >= first + 5, TIMEOUT_S)  # type: ignore[misc]
    assert sorted(seen) == [("invoice.sent", n) for n in range(10)]
    system.stop()


async def test_a_client_without_an_app_cannot_send_events() -> None:
    with pytest.raises(ConfigError, match="produce= sends events of an App"):
        await BullMQ(redis_server.url(), produce={"a": "b"}).open()


async def test_a_limiter_holds_jobs_back() -> None:
    url, seen = redis_server.url(), []

    async def take(message: Message) -> None:
        seen.append(message.id)

    async with BullMQ(url, poll="20ms") as client:
        for n in range(5):
            await client.produce("billing", "paid", {"urn": f"a{n}"})
        await client.consume("billing", take, {"limiter": {"max": 2, "duration": 3_600_000}})
        await until(lambda: len(seen) == 2, TIMEOUT_S)
        queue = Queue("billing", {"connection": url})
        counts = await queue.getJobCounts("waiting", "completed")
        await queue.close()
    assert counts == {"waiting": 3, "completed": 2}


async def test_the_options_of_a_node_job_come_first() -> None:
    """What BullMQ's own producers set with a job counts, not the bridge's defaults."""
    url, attempts = redis_server.url(), []

    async def fail(message: Message) -> None:
        attempts.append(message.attempt)
        raise OSError("no luck")

    queue = Queue("billing", {"connection": url})
    await queue.add("paid", {"urn": "a"}, {"attempts": 2, "backoff": 1, "removeOnFail": True})
    async with BullMQ(url, poll="20ms", dead_letters=False) as client:
        await client.consume("billing", fail)
        await until(lambda: len(attempts) == 2, TIMEOUT_S)

        async def is_removed() -> bool:
            counts: dict[str, int] = await queue.getJobCounts("waiting", "active", "delayed", "failed")
            return not any(counts.values())

        await until(is_removed, TIMEOUT_S)
        assert await client.depth("billing-dlq") == 0
    await queue.close()


async def test_a_job_whose_lease_is_lost_is_left_to_its_new_worker() -> None:
    url, started, seen = redis_server.url(), asyncio.Event(), []

    async def hang(message: Message) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    async with BullMQ(url, poll="20ms", lease="300ms") as client:
        id = await client.produce("billing", "paid", {"urn": "a"})
        consumption = await client.consume("billing", hang, {"concurrency": 1})
        await asyncio.wait_for(started.wait(), TIMEOUT_S)
        await client._require_store().client.call("HSET", f"bull:billing:{id}", "ats", 2)
        await until(lambda: seen, TIMEOUT_S)
        assert consumption.is_running
    assert seen[0] == "cancelled"


@pytest.mark.parametrize(
    ("opts", "expected"),
    [
        (b'{"attempts": 5}', (5, "exponential", 30_000)),
        (b'{"attempts": 0, "backoff": 7}', (3, "fixed", 7)),
        (b'{"backoff": {"type": "exponential", "delay": 9}}', (3, "exponential", 9)),
        (b'{"backoff": {"delay": "x"}}', (3, "fixed", 0)),
        (b"[1]", (3, "exponential", 30_000)),
        (b"\xff", (3, "exponential", 30_000)),
    ],
)
def test_retries_of_a_job(opts: bytes, expected: Any) -> None:
    policy = JobFields.read(opts, b"1").retry(DEFAULT_RETRY)
    assert (policy.attempts, policy.backoff.type, policy.backoff.delay_ms) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"true", KeepJobs(0)), (b"false", None), (b"7", KeepJobs(7)), (b'"x"', KeepJobs(9)),
        (b'{"count": 3, "age": 60}', KeepJobs(3, 60_000)),
    ],
)  # fmt: skip
def test_what_a_job_says_about_its_removal(value: bytes, expected: Any) -> None:
    fields = JobFields.read(b'{"removeOnFail": %s}' % value, None)
    assert fields.keep("removeOnFail", KeepJobs(9)) == expected


def test_options_that_bridges_share() -> None:
    assert read_limiter("100/1m") == RateLimit(100, 60_000)
    assert read_limiter({"max": 1, "duration": 5}) == RateLimit(1, 5)
    for wrong in ("x", {"max": 0, "duration": 5}, 7):
        with pytest.raises(BadArgument, match="limiter must be"):
            read_limiter(wrong)
    assert (read_keep(True, "k"), read_keep(False, "k"), read_keep(4, "k")) == (None, KeepJobs(0), KeepJobs(4))
    with pytest.raises(BadArgument, match="k must be a number of jobs"):
        read_keep(-1, "k")
    assert read_dead_letters(False).enabled is False
    assert read_dead_letters({"suffix": "-dead"}).suffix == "-dead"
    for value in ({"sufix": "x"}, {"suffix": ""}):
        with pytest.raises(BadArgument, match="dead_letters"):
            read_dead_letters(value)


def test_a_dead_letter_of_anything() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert b'"message":"Odd"' in build_dead_message(Message("1", "q", {"a": 1}), Odd(), 0, 3)
    assert b"object" in build_dead_message(Message("1", "q", object()), ValueError("x"), 0, 3)
