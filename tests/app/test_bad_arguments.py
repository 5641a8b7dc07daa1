"""Bad arguments are refused with a code and a valid alternative, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import App, PenstockError, flow, job

NOW = datetime.now(UTC)


@flow("shop")
async def shop(order: Any) -> None: ...


@job(queue="mail")
async def send(mail: Any) -> None: ...


CALLS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "delay": (lambda a: a.start("shop", 1, delay="soon"), "bad_duration", "invalid duration 'soon'; use"),
    "a negative delay": (lambda a: a.enqueue("mail", 1, delay=-1), "bad_duration", "must not be negative, got -1"),
    "at": (lambda a: a.start("shop", 1, at="2030-01-01"), "bad_argument", "a time must be a datetime such as"),
    "both": (lambda a: a.enqueue("mail", 1, at=NOW, delay=3), "bad_argument", "pass either delay= or at=, not both"),
    "tags": (lambda a: a.start("shop", 1, tags=["ada"]), "bad_argument", "tags must be a mapping of names to values"),
    "a number in tags": (lambda a: a.start("shop", 1, tags={"a": 1}), "bad_argument", "got 'a': 1"),
    "no tag": (lambda a: a.start("shop", 1, tags={"a": None}), "bad_argument", "got 'a': None"),
    "a name in tags": (lambda a: a.start("shop", 1, tags={None: "a"}), "bad_argument", "got None: 'a'"),
    "a key": (lambda a: a.start("shop", 1, key=5), "bad_argument", "5"),
    "an empty key": (lambda a: a.start("shop", 1, key=""), "bad_id", "''"),
    "a job's key": (lambda a: a.enqueue("mail", 1, key=b"k"), "bad_argument", "b'k'"),
    "a correlation id": (lambda a: a.start("shop", 1, correlation_id=5), "bad_argument", "correlation_id must be"),
    "a job's correlation id": (lambda a: a.enqueue("mail", 1, correlation_id={}), "bad_argument", "got {}"),
    "a tree's correlation id": (
        lambda a: a.jobs.enqueue_tree({"name": "x", "queueName": "mail"}, correlation_id=1),
        "bad_argument",
        "got 1",
    ),
    "a priority": (lambda a: a.start("shop", 1, priority="high"), "bad_priority", "'high'"),
    "a job's priority": (lambda a: a.enqueue("mail", 1, priority=1.5), "bad_priority", "1.5"),
    "a job's name": (lambda a: a.enqueue("mail", 1, name=5), "bad_argument", "name must be"),
    "a dedupe key": (lambda a: a.enqueue("mail", 1, dedupe=5), "bad_argument", "5"),
    "an order key": (lambda a: a.enqueue("mail", 1, order_key=5), "bad_argument", "5"),
    "an event": (lambda a: a.emit(5, 1), "bad_argument", "got 5"),
    "an event's key": (lambda a: a.emit("paid", 1, key=5), "bad_argument", "5"),
    "a schedule's name": (lambda a: a.schedules.add("s", queue="mail", every="1h", name=5), "bad_argument", "got 5"),
    "a schedule's priority": (
        lambda a: a.schedules.add("s", flow="shop", every="1h", priority="x"),
        "bad_priority",
        "'x'",
    ),
    "a schedule's id": (lambda a: a.schedules.add(5, flow="shop", every="1h"), "bad_argument", "5"),
    "a schedule's limit": (lambda a: a.schedules.add("s", flow="shop", every="1h", limit="x"), "bad_schedule", "'x'"),
    "text as tags": (lambda a: a.start("shop", 1, tags="ada"), "bad_argument", "got 'ada'"),
    "timeout": (lambda a: a.runs.wait("x", timeout="soon"), "bad_duration", "'soon'"),
    "a job's timeout": (lambda a: a.jobs.result("x", timeout=[]), "bad_duration", "invalid duration []"),
    "ttl": (lambda a: a.state.set("k", 1, ttl="soon"), "bad_duration", "'soon'"),
    "no key": (lambda a: a.state.get(""), "bad_argument", "1 to 500 characters"),
    "a number as key": (
        lambda a: a.state.set(7, 1),
        "bad_argument",
        "a state key must be a string or a list of parts, got 7",
    ),
    "status": (lambda a: a.runs.list(status="faild"), "bad_argument", "unknown status 'faild'; did you mean 'failed'?"),
    "a strange status": (lambda a: a.runs.list(status="xyz"), "bad_argument", "status must be 'running', "),
    "limit": (lambda a: a.runs.list(limit=0), "bad_argument", "limit must be a whole number of at least 1, got 0"),
    "no number": (
        lambda a: a.runs.list(limit="x"),
        "bad_argument",
        "limit must be a whole number of at least 1, got 'x'",
    ),
    "a high limit": (lambda a: a.runs.list(limit=2**63), "bad_argument", "limit must be at most 1,000,000, got 92233"),
    "events' limit": (lambda a: a.events.read("nq:global", limit=2**63), "bad_argument", "limit must be at most 1,000"),
    "a surrogate": (lambda a: a.runs.get("\ud800"), "bad_argument", r"id must be valid text, got a lone surrogate in"),
    "NUL": (lambda a: a.emit("a.b", key="\0"), "bad_argument", "key must not contain a NUL character"),
    "a long key": (lambda a: a.emit("a.b", key="x" * 501), "bad_argument", "key must have at most 500 characters"),
    "no bool": (lambda a: a.queues.list(internal="no"), "bad_argument", "internal must be True or False, got 'no'"),
    "state": (
        lambda a: a.jobs.list("mail", "wating"),
        "bad_argument",
        "unknown state 'wating'; did you mean 'waiting'?",
    ),
    "one payload as text": (
        lambda a: a.jobs.enqueue_many("mail", "abc"),
        "bad_argument",
        "inputs must be a list, got 'abc'",
    ),
    "one payload": (
        lambda a: a.jobs.enqueue_many("mail", {"a": 1}),
        "bad_argument",
        "for a single value, pass [{'a': 1}]",
    ),
    "no payloads": (lambda a: a.jobs.enqueue_many("mail", None), "bad_argument", "inputs must be a list, got None"),
    "every": (lambda a: a.schedules.add("s", flow="shop", every="soon"), "bad_duration", "'soon'"),
    "a schedule's at": (
        lambda a: a.schedules.add("s", flow="shop", at="2030"),
        "bad_argument",
        "a time must be a datetime",
    ),
    "queues as text": (lambda a: a.workers.run("mail"), "bad_argument", "queues must be a list, got 'mail'"),
    "no concurrency": (lambda a: a.workers.run(concurrency=0), "bad_argument", "concurrency must be a whole number"),
    "a run": (lambda a: anext(a.runs.follow("nope")), "unknown_run", "no run with id 'nope' in "),
    "events": (lambda a: anext(a.queues.events("mial")), "unknown_queue", "no queue named 'mial'; did you mean"),
    "a token": (lambda a: a.waits.fire(5), "bad_argument", "token must be a string, got 5"),
    "a letter": (lambda a: a.dead_letters.redrive(5), "bad_argument", "id must be a string, got 5"),
    "a change": (
        lambda a: a.state.patch("a", 5),
        "bad_argument",
        "change must be a function that takes the old value",
    ),
    "a flow": (lambda a: a.runs.list(flow=5), "bad_argument", "flow must be a string, got 5"),
    "queue": (lambda a: a.queues.pause("mial"), "unknown_queue", "no queue named 'mial'; did you mean 'mail'?"),
}


@pytest.mark.parametrize("what", CALLS)
async def test_bad_arguments(what: str) -> None:
    call, code, expected = CALLS[what]
    async with App(":memory:", handlers=[shop, send]) as app:
        with pytest.raises(PenstockError) as problem:
            await call(app)
        assert problem.value.code == code
        assert expected in str(problem.value)
        assert (await app.runs.list(), await app.schedules.list()) == ([], [])
        assert sum((await app.queues.counts("mail")).values()) == 0


async def test_bad_arguments_are_value_errors() -> None:
    async with App(":memory:", handlers=[shop]) as app:
        with pytest.raises(ValueError, match="soon"):
            await app.start("shop", 1, delay="soon")


async def test_enqueue_many_takes_any_iterable() -> None:
    async with App(":memory:", handlers=[send]) as app:
        assert len(await app.jobs.enqueue_many("mail", (n for n in range(3)))) == 3
        assert len(await app.jobs.enqueue_many("mail", range(2))) == 2
