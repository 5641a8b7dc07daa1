"""What a program that writes BullMQ's keys in Redis can do to workers, and what it cannot."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

import redis_server
from penstock import flow, job
from penstock.testing.until import until

TEST_TIMEOUT_S = 20
called: list[Any] = []


@job(queue="mail", retry=5)
async def mail(input: Any) -> str:
    called.append(input)
    return "sent"


@flow("payout", emits=[])
async def payout(cents: int) -> int:
    return cents


@pytest.fixture
def url() -> str:
    called.clear()
    return redis_server.url()


def add_raw(url: str, queue: str, id: str, name: str, data: bytes) -> None:
    """Add a job as BullMQ's script does."""
    with redis.Redis.from_url(url.partition("?")[0]) as server:
        fields = {"name": name, "data": data, "opts": "{}", "timestamp": 1700000000000, "delay": 0, "priority": 0}
        server.hset(f"bull:{queue}:{id}", mapping=fields)
        server.lpush(f"bull:{queue}:wait", id)
        server.zadd(f"bull:{queue}:marker", {"0": 0})


BROKEN = {
    "malformed": b"{bad",
    "not a number": b'{"a": NaN}',
    "too deep": b"[" * 100_000 + b"]" * 100_000,
    "not UTF-8": b'"\xff"',
    "a lone surrogate": b'"\\ud800"',
    "zero byte": b"\x00",
}


@pytest.mark.parametrize("what", BROKEN)
async def test_input_that_is_not_json_fails_the_job_once(url: str, what: str, app_factory: Any) -> None:
    async with app_factory(url)(mail) as app, app.workers.background():
        assert await app.jobs.result(await app.enqueue("mail", 1), timeout=TEST_TIMEOUT_S) == "sent"
        add_raw(url, "mail", "foreign", "mail", BROKEN[what])
        row = await app.wait_for_state("foreign", "failed")
        assert "must be valid JSON" in json.loads(row.error or b"")["error"]
        (letter,) = await app.list_dead_letters("mail")
        assert (letter.original_job_id, letter.error["code"], letter.attempts_made) == ("foreign", "unreadable_job", 1)
        assert letter.original_data is None
        assert called == [1]
        assert await app.jobs.result(await app.enqueue("mail", 2), timeout=TEST_TIMEOUT_S) == "sent"


async def test_a_job_calls_registered_handlers_only(url: str, app_factory: Any) -> None:
    """The name of a job and its data are data: neither is imported or evaluated."""
    async with app_factory(url)(mail) as app, app.workers.background():
        add_raw(url, "mail", "foreign", "os.system", b'{"py/object": "os.system", "__reduce__": ["os.system", "id"]}')
        await app.wait_for_state("foreign", "completed")
        assert called == [{"py/object": "os.system", "__reduce__": ["os.system", "id"]}]


async def test_the_queue_of_deliveries_starts_flows(url: str, app_factory: Any) -> None:
    """docs/security.md names this: the keys of this queue are worth as much as the App."""
    async with app_factory(url)(payout) as app, app.workers.background():
        start = {"flow": "payout", "run": "forged", "input": 7, "correlationId": "c", "parent": "p"}
        add_raw(url, "penstock-events", "foreign", "start", json.dumps(start).encode())

        async def is_there() -> bool:
            return await app.store.run("forged") is not None

        await until(is_there, TEST_TIMEOUT_S)
        assert await app.result("forged", timeout=TEST_TIMEOUT_S) == 7
