"""Jobs that another program wrote badly: each fails alone and once, or runs, and its neighbours complete.

Every job is written as a plain BullMQ producer, or anybody with redis-cli, could write it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis import Redis

import redis_server
from penstock import job
from penstock.app.diagnosis import diagnose
from penstock.core.payload import show_stored
from penstock.ports.unit import JobState
from penstock.testing.until import until

QUEUE = "mail"
BASE = f"bull:{QUEUE}:".encode()
GOOD = {
    b"name": b"send",
    b"data": b'{"to":"eve"}',
    b"opts": b'{"attempts":1}',
    b"timestamp": b"1700000000000",
    b"delay": b"0",
    b"priority": b"0",
}
VALUES: dict[str, bytes | None] = {
    "missing": None,
    "not UTF-8": b"\xff\xfe\x80",
    "empty": b"",
    "huge": b"x" * 300_000,
    "number": b"7",
    "NaN": b"NaN",
    "infinity": b"inf",
    "deep": b"[" * 5000,
    "deep and closed": b"[" * 5000 + b"]" * 5000,
    "negative": b"-7",
    "2**63": str(2**63).encode(),
    "padded": b"007",
    "text": b"{oops",
    "object": b'{"a":1}',
    "list": b"[1,2]",
    "null": b"null",
}
BROKEN_JSON = {"not UTF-8", "huge", "NaN", "infinity", "deep", "deep and closed", "padded", "text"}
# What cannot be read at all. Every other value is ignored or read as BullMQ reads it, and the job runs.
FAILS = {
    "name": {"missing", "not UTF-8"},
    "data": BROKEN_JSON,
    "nq:opts": BROKEN_JSON | {"empty", "number", "negative", "2**63", "list", "null"},
    "nq:scope": {"not UTF-8"},
}
# A job of a run that does not exist is cancelled, one that another program marked as failed is failed by its mark.
ENDS_AS = {"nq:run": JobState.CANCELLED, "defa": JobState.FAILED}
FIELDS = (
    "name", "data", "opts", "timestamp", "delay", "priority", "ats", "atm", "stc", "attemptsMade", "finishedOn", "processedOn",
    "progress", "returnvalue", "failedReason", "stacktrace", "parentKey", "parent", "rjk", "deid", "defa", "pb",
    "nq:failures", "nq:crashes", "nq:scope", "nq:opts", "nq:run", "nq:started", "nq:number", "nq:due", "nq:rate_key",
    "nq:unit", "nq:error", "nq:token", "nq:has_children",
)  # fmt: skip


class Mailbox:
    """A handler that counts its calls, and the raw Redis beside it."""

    def __init__(self, app: Any, redis: Redis, calls: list[str]) -> None:
        self.app, self.redis, self.calls = app, redis, calls

    def write(self, id: bytes, fields: dict[bytes, bytes | None], *, place: str = "wait") -> None:
        """Write a job as BullMQ does: its hash, then its id in a list or a sorted set of the queue."""
        known = {name: value for name, value in fields.items() if value is not None}
        self.redis.delete(BASE + id)
        if known:
            self.redis.hset(BASE + id, mapping=known)  # type: ignore[arg-type]
        self.put(id, place)

    def put(self, id: bytes, place: str) -> None:
        if place in ("wait", "active"):
            self.redis.lpush(BASE + place.encode(), id)
        else:
            self.redis.zadd(BASE + place.encode(), {id: 1})
        self.redis.zadd(BASE + b"marker", {"0": 0})

    def write_good(self, *ids: str) -> None:
        for id in ids:
            self.write(id.encode(), GOOD)

    async def wait_for(self, *ids: str) -> None:
        """Wait until good jobs have completed."""
        for id in ids:
            await self.app.wait_for_state(id, "completed")

    async def ended(self, id: str) -> Any:
        return await self.app.wait_for_state(id, "completed", "failed", "cancelled")

    async def check_alive(self) -> None:
        """Check that the worker still works, and that every listing can be read."""
        assert await self.app.jobs.result(await self.app.enqueue(QUEUE, {"to": "last"}), timeout=20) == "sent"
        for state in JobState:
            for view in await self.app.jobs.list(QUEUE, state, limit=1000):
                if view.name != "send" or view.state is not JobState.COMPLETED:
                    assert (await self.app.jobs.get(view.id)).state == view.state
                    await self.app.jobs.count_children(view.id)
        await self.app.dead_letters.list(QUEUE, limit=1000)
        assert [check.name for check in await diagnose(self.app)]


@pytest.fixture
async def mailbox(app_factory: Any, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Mailbox]:
    caplog.set_level(logging.CRITICAL, "penstock")
    calls: list[str] = []

    @job(queue=QUEUE)
    async def send(ctx: Any) -> str:
        calls.append(ctx.job_id)
        if ctx.job_id == "large":
            raise ValueError("too large")
        if ctx.job_id == "slow":
            await asyncio.sleep(3600)
        return "sent"

    @job(queue="other")
    async def other() -> str:
        return "other"

    url = redis_server.url()
    with Redis.from_url(url) as redis:
        async with app_factory(url)(send, other, lease="10s", max_crashes=1) as app, app.workers.background():
            yield Mailbox(app, redis, calls)


@pytest.mark.parametrize("field", FIELDS)
async def test_a_bad_field_fails_its_own_job_at_most(mailbox: Mailbox, field: str) -> None:
    mailbox.write_good("good-first")
    for n, value in enumerate(VALUES.values()):
        mailbox.write(f"bad-{n}".encode(), {**GOOD, field.encode(): value})
        mailbox.write_good(f"good-{n}")
    await mailbox.wait_for("good-first", *(f"good-{n}" for n in range(len(VALUES))))
    wrong = {}
    for n, case in enumerate(VALUES):
        row = await mailbox.ended(f"bad-{n}")
        expected = JobState.FAILED if case in FAILS.get(field, ()) else JobState.COMPLETED
        if field in ENDS_AS and case != "missing":
            expected = ENDS_AS[field]
        runs = mailbox.calls.count(f"bad-{n}")
        if row.state is not expected or runs != (expected is JobState.COMPLETED) or row.attempt not in (0, 1, 8):
            wrong[case] = (row.state.value, runs, row.attempt, row.error)
        if expected is JobState.FAILED and field != "defa":
            assert row.failures == 1
            assert show_stored(row.error)["name"] == "UnreadableJob", case
            letter = await mailbox.app.dead_letters.get(f"bad-{n}")
            assert letter.unreadable
            assert (await mailbox.app.dead_letters.redrive(f"bad-{n}")).refused
    assert not wrong
    await mailbox.check_alive()


STRANGE_IDS = (
    b"\xff\xfe", b"", b"~", b"~tilde", b"~meta", b"~hex:ff", b"~hex:zz", b"0:1", b"a:b:c", b"x" * 5000, b"with space",
    b"new\nline", b"nul\x00", "schön".encode(), b"-1", b"[1]", b"'quote\"",
)  # fmt: skip


@pytest.mark.parametrize("place", ["wait", "prioritized", "delayed"])
async def test_strange_ids(mailbox: Mailbox, place: str) -> None:
    mailbox.write_good("good-first")
    for id in STRANGE_IDS:
        mailbox.write(id, GOOD, place=place)
    mailbox.write_good("good-last")
    await mailbox.wait_for("good-first", "good-last")

    async def all_ended() -> bool:
        ends = (mailbox.redis.zscore(BASE + end, id) for id in STRANGE_IDS for end in (b"completed", b"failed"))
        return sum(score is not None for score in ends) == len(STRANGE_IDS)

    await until(all_ended, 20)
    for id in STRANGE_IDS:
        is_failed = mailbox.redis.zscore(BASE + b"failed", id) is not None
        assert is_failed == (id in (b"\xff\xfe", b"0:1")), id
    shown = await mailbox.app.jobs.get("~hex:fffe")
    assert (shown.state, shown.error["name"], shown.failures) == (JobState.FAILED, "UnreadableJob", 1)
    assert len(mailbox.calls) == len(set(mailbox.calls))
    await mailbox.check_alive()


WRONG_TYPES = {
    b"text": lambda redis, key: redis.set(key, "text"),
    b"list": lambda redis, key: redis.rpush(key, "a"),
    b"set": lambda redis, key: redis.sadd(key, "a"),
    b"zset": lambda redis, key: redis.zadd(key, {"a": 1}),
    b"stream": lambda redis, key: redis.xadd(key, {"a": 1}),
}


@pytest.mark.parametrize("place", ["wait", "prioritized", "delayed", "active"])
async def test_a_job_whose_key_is_not_a_hash_is_set_aside(mailbox: Mailbox, place: str) -> None:
    mailbox.write_good("good-first")
    for id, write in WRONG_TYPES.items():
        write(mailbox.redis, BASE + id)
        mailbox.put(id, place)
    if place == "active":  # as after a worker that died: the stalled check finds it
        mailbox.redis.sadd(BASE + b"stalled", *WRONG_TYPES)
        mailbox.redis.delete(BASE + b"stalled-check")
    mailbox.write_good("good-last")
    await mailbox.wait_for("good-first", "good-last")

    async def all_set_aside() -> bool:
        return set(mailbox.redis.hkeys(BASE + b"nq:set_aside")) == set(WRONG_TYPES)

    await until(all_set_aside, 20)
    for queue_list in (b"wait", b"active"):
        assert not set(mailbox.redis.lrange(BASE + queue_list, 0, -1)) & set(WRONG_TYPES)
    for queue_set in (b"prioritized", b"delayed"):
        assert not set(mailbox.redis.zrange(BASE + queue_set, 0, -1)) & set(WRONG_TYPES)
    await mailbox.check_alive()
    (store,) = [check for check in await diagnose(mailbox.app) if check.name == "store"]
    assert not store.ok
    for id in map(bytes.decode, WRONG_TYPES):
        assert f"job '{id}' of queue '{QUEUE}' was set aside" in store.detail
        shown = await mailbox.app.jobs.get(id)
        assert (shown.state, "not hash" in shown.error["error"]) == (JobState.FAILED, True)
        assert await mailbox.app.jobs.remove(id)
        assert mailbox.redis.exists(BASE + id.encode())
    (store,) = [check for check in await diagnose(mailbox.app) if check.name == "store"]
    assert "set aside" not in store.detail


async def test_a_claimed_job_whose_key_is_replaced_ends_nothing_else(mailbox: Mailbox) -> None:
    """Its lease expires, and it is set aside."""

    async def replace_all() -> bool:
        for id in mailbox.redis.zrange(BASE + b"nq:leases", 0, -1):
            mailbox.redis.delete(BASE + id)
            mailbox.redis.set(BASE + id, "text")
        return bool(mailbox.redis.hkeys(BASE + b"nq:set_aside"))

    mailbox.write(b"slow", {**GOOD, b"name": b"slow"})
    mailbox.write_good("good")
    await mailbox.wait_for("good")
    await until(replace_all, 30)
    assert mailbox.redis.hkeys(BASE + b"nq:set_aside") == [b"slow"]
    await mailbox.check_alive()


def replace_with_list(redis: Redis, key: bytes) -> None:
    redis.delete(key)
    redis.rpush(key, "text")


BAD_KEYS: dict[str, Any] = {
    "limiter is text": lambda redis: redis.set(BASE + b"limiter", "text"),
    "limiter is a list": lambda redis: redis.rpush(BASE + b"limiter", "text"),
    "concurrency is text": lambda redis: redis.hset(BASE + b"meta", "concurrency", "text"),
    "max is text": lambda redis: redis.hset(BASE + b"meta", "max", "text"),
    "max without duration": lambda redis: redis.hset(BASE + b"meta", "max", "5"),
    "duration is text": lambda redis: redis.hset(BASE + b"meta", mapping={"max": "5", "duration": "text"}),
    "maxLenEvents is text": lambda redis: redis.hset(BASE + b"meta", "opts.maxLenEvents", "text"),
    "metrics are text": lambda redis: redis.hset(BASE + b"metrics:completed", mapping={"prevTS": "x", "count": "y"}),
    "metrics are a list": lambda redis: replace_with_list(redis, BASE + b"metrics:completed"),
    "stalled-check is a list": lambda redis: replace_with_list(redis, BASE + b"stalled-check"),
    "an infinite delay": lambda redis: redis.zadd(BASE + b"delayed", {"never": "inf"}),
    "a deleted delayed job": lambda redis: redis.zadd(BASE + b"delayed", {"gone": "-inf"}),
    "a deleted waiting job": lambda redis: redis.lpush(BASE + b"wait", "gone"),
    "words of the queue as ids": lambda redis: redis.lpush(BASE + b"wait", "meta", "events", "wait", "id", "marker"),
}


@pytest.mark.parametrize("case", BAD_KEYS)
async def test_a_bad_key_of_the_queue_stops_nothing(mailbox: Mailbox, case: str) -> None:
    mailbox.write_good("good-first")
    await mailbox.wait_for("good-first")
    BAD_KEYS[case](mailbox.redis)
    mailbox.write_good("good", "good-too")
    mailbox.write(b"bad", {**GOOD, b"data": b"{oops"})
    await mailbox.wait_for("good", "good-too")
    assert (await mailbox.ended("bad")).failures == 1
    await mailbox.check_alive()


@pytest.mark.parametrize("name", [b"wait", b"meta", b"active", b"prioritized", b"delayed"])
async def test_a_queue_that_cannot_be_read_stops_alone(
    mailbox: Mailbox, name: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "penstock")
    broken = b"bull:other:" + name
    mailbox.redis.delete(broken)
    mailbox.redis.set(broken, "text")
    mailbox.redis.set(b"bull:other:marker", "text")
    mailbox.write_good("good")
    await mailbox.wait_for("good")
    assert await mailbox.app.jobs.result(await mailbox.app.enqueue(QUEUE, {}), timeout=20) == "sent"

    def warned() -> bool:
        return any("cannot claim from queue 'other'" in record.getMessage() for record in caplog.records)

    await until(warned, 20)
    mailbox.redis.sadd(b"nq:queues", "other")
    assert "other" in [queue.name for queue in await mailbox.app.queues.list()]
    await mailbox.check_alive()
    mailbox.redis.delete(broken, b"bull:other:marker")
    assert await mailbox.app.jobs.result(await mailbox.app.enqueue("other", {}), timeout=20) == "other"
    assert any("queue 'other' can be claimed from again" in record.getMessage() for record in caplog.records)


BAD_REPEATS: dict[str, bytes | None] = {
    **VALUES,
    "no repeat": b"{}",
    "repeat is a list": b'{"repeat":[1]}',
    "bad count": b'{"repeat":{"count":"x","every":10}}',
    "bad limit": b'{"repeat":{"limit":"x","every":10}}',
    "bad end": b'{"repeat":{"endDate":"never","every":10}}',
    "bad pattern": b'{"repeat":{"pattern":"* *"}}',
    "bad zone": b'{"repeat":{"pattern":"* * * * * *","tz":"Moon/Base"}}',
    "bad previous time": b'{"repeat":{"pattern":"* * * * * *"},"prevMillis":"x"}',
    "huge previous time": b'{"repeat":{"pattern":"* * * * * *"},"prevMillis":1e300}',
    "every is text": b'{"repeat":{"every":"x"}}',
}


async def test_a_job_scheduler_that_cannot_be_read_creates_no_next_job(mailbox: Mailbox) -> None:
    mailbox.write_good("good-first")
    for n, opts in enumerate(BAD_REPEATS.values()):
        scheduler = b"often-%d" % n if n % 2 else b"\xff\xfe-%d" % n
        mailbox.redis.hset(BASE + b"repeat:" + scheduler, mapping={"name": "send", "every": "x"})
        mailbox.redis.zadd(BASE + b"repeat", {scheduler: 1})
        mailbox.write(b"bad-%d" % n, {**GOOD, b"rjk": scheduler, b"opts": opts})
        mailbox.write_good(f"good-{n}")
    await mailbox.wait_for("good-first", *(f"good-{n}" for n in range(len(BAD_REPEATS))))
    for n in range(len(BAD_REPEATS)):
        assert (await mailbox.ended(f"bad-{n}")).state is JobState.COMPLETED
        assert mailbox.calls.count(f"bad-{n}") == 1
    await mailbox.check_alive()


async def test_a_reader_of_bullmq_events_passes_those_that_cannot_be_read(mailbox: Mailbox) -> None:
    events: list[dict[bytes, bytes]] = [
        {b"event": b"delayed", b"jobId": b"a", b"delay": value} for value in VALUES.values() if value is not None
    ]
    events += [{b"event": b"completed", b"jobId": b"b", b"returnvalue": value} for value in VALUES.values() if value]
    events += [{b"event": b"progress", b"jobId": b"\xff", b"data": b"5"}, {b"\xff": b"\xff"}, {b"event": b"\xff"}]
    events += [{b"event": b"failed", b"jobId": b"last", b"failedReason": b"full"}]
    for event in events:
        mailbox.redis.xadd(BASE + b"events", event)  # type: ignore[arg-type]
    seen = []
    async with asyncio.timeout(20):
        async for event in mailbox.app.queues.events(QUEUE, shared=True):
            seen.append(event)
            if event.subject == "last":
                break
    assert len(seen) == len(events)
    assert sum(event.is_unreadable for event in seen) >= 3
    assert any(event.subject == "~hex:ff" for event in seen)


async def test_children_that_cannot_be_read_stop_no_parent(mailbox: Mailbox) -> None:
    for n, write in enumerate(WRONG_TYPES.values()):
        for suffix in (b":dependencies", b":processed", b":failed", b":unsuccessful"):
            write(mailbox.redis, BASE + b"parent-%d" % n + suffix)
        mailbox.write(b"parent-%d" % n, GOOD)
    mailbox.redis.hset(BASE + b"odd:processed", mapping={b"\xff": b"{oops", b"x": b"", b"a:b:c": b"1"})
    mailbox.write(b"odd", GOOD)
    mailbox.write_good("good")
    await mailbox.wait_for("good", "odd")
    for n in range(len(WRONG_TYPES)):
        row = await mailbox.ended(f"parent-{n}")
        assert row.attempt == 1
    assert len(await mailbox.app.jobs.children("odd")) == 3
    await mailbox.check_alive()


async def test_a_job_too_large_for_a_dead_letter_fails_once(mailbox: Mailbox) -> None:
    mailbox.write(b"bad", {**GOOD, b"name": b"x" * 300_000, b"data": b"{oops"})
    mailbox.write(b"large", {**GOOD, b"name": b"fail", b"data": b'"' + b"x" * 300_000 + b'"'})
    mailbox.write_good("good")
    await mailbox.wait_for("good")
    for id in ("bad", "large"):
        row = await mailbox.ended(id)
        assert (id, row.state, row.failures, row.attempt) == (id, JobState.FAILED, 1, 1)
    assert "too many" in ((await mailbox.app.dead_letters.get("large")).unreadable or "")
    await mailbox.check_alive()


async def test_names_of_other_queues_and_streams_that_are_not_utf8(mailbox: Mailbox) -> None:
    """A commit names them as topics: its answer, and the message to other processes, can still be read."""
    mailbox.redis.sadd(b"nq:queues", b"\xff")
    mailbox.write(b"child", {**GOOD, b"parentKey": b"bull:\xff:1"})
    mailbox.write(b"stream", {**GOOD, b"nq:stream": b"\xff", b"nq:started": b"{"})
    mailbox.write(b"wrong", {**GOOD, b"nq:stream": BASE + b"wait", b"nq:started": b"{"})
    mailbox.write(b"half", {**GOOD, b"nq:stream": b"nq:queue:mail"})
    mailbox.write_good("good")
    await mailbox.wait_for("good", "child", "stream", "wrong", "half")
    assert len(mailbox.calls) == 5
    assert await mailbox.app.queues.list()
    await mailbox.check_alive()
