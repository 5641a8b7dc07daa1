"""Times out of range: every call refuses them before anything is written, and views show them if a store has them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import App, Await, PenstockError, flow, job, step
from penstock.errors import DefinitionError
from penstock.jobs.job_trees import Node
from penstock.ports.unit import RateLimit
from penstock.testing.until import until

FAR = "99999999d"
NEVER = datetime.max.replace(tzinfo=UTC)
MAX_DURATION_TEXT = "too long; the maximum is 36525d (100 years)"
LATEST = "is out of range; a time must be from 0001-01-01T00:00:00.000Z to 9999-12-31T23:59:59.999Z"


@flow("shop")
async def shop(order: Any) -> None: ...


@job(queue="mail")
async def send(mail: Any) -> None: ...


SPANS: dict[str, Callable[[Any], Any]] = {
    "start": lambda a: a.start("shop", 1, delay=FAR),
    "enqueue": lambda a: a.enqueue("mail", 1, delay=FAR),
    "a float": lambda a: a.enqueue("mail", 1, delay=1e20),
    "a large number": lambda a: a.enqueue("mail", 1, delay=10**400),
    "enqueue_many": lambda a: a.jobs.enqueue_many("mail", [1], delay=FAR),
    "dedupe_ttl": lambda a: a.enqueue("mail", 1, dedupe="a", dedupe_ttl=FAR),
    "keep": lambda a: a.enqueue("mail", 1, keep_completed=FAR),
    "a node": lambda a: a.jobs.enqueue_tree(Node(send, 1, children=[Node(send, 2, delay=FAR)])),
    "BullMQ's": lambda a: a.jobs.enqueue_tree({"name": "send", "queue": "mail", "data": 1, "opts": {"delay": 10**17}}),
    "BullMQ's, huge": lambda a: a.jobs.enqueue_tree(
        {"name": "send", "queue": "mail", "data": 1, "opts": {"delay": 10**400}}
    ),
    "every": lambda a: a.schedules.add("s", queue="mail", every=FAR),
    "state": lambda a: a.state.set("k", 1, ttl=FAR),
    "result": lambda a: a.jobs.result("x", timeout=FAR),
    "since": lambda a: a.runs.list(since=FAR),
}
MOMENTS: dict[str, Callable[[Any], Any]] = {
    "start": lambda a: a.start("shop", 1, at=NEVER),
    "enqueue": lambda a: a.enqueue("mail", 1, at=NEVER),
    "schedule": lambda a: a.schedules.add("s", queue="mail", at=NEVER),
    "from": lambda a: a.schedules.add("s", queue="mail", every="1h", start=NEVER),
    "to": lambda a: a.schedules.add("s", queue="mail", every="1h", end=NEVER),
    "runs": lambda a: a.runs.list(until=NEVER),
}


async def refused(call: Callable[[Any], Any], code: str, expected: str) -> None:
    async with App(":memory:", handlers=[shop, send]) as app:
        with pytest.raises(PenstockError) as problem:
            await call(app)
        assert (problem.value.code, expected in str(problem.value)) == (code, True)
        assert (await app.runs.list(), await app.schedules.list()) == ([], [])
        assert sum((await app.queues.counts("mail")).values()) == 0


@pytest.mark.parametrize("door", SPANS)
async def test_durations_that_are_too_long(door: str) -> None:
    await refused(SPANS[door], "bad_duration", MAX_DURATION_TEXT)


@pytest.mark.parametrize("door", MOMENTS)
async def test_times_that_are_too_late(door: str) -> None:
    await refused(MOMENTS[door], "bad_argument", LATEST)


@pytest.mark.parametrize("last", [{"delay": "36525d"}, {"at": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)}])
async def test_the_latest_valid_time(app: Any, last: dict[str, Any]) -> None:
    async with app(shop, send) as a:
        assert (await a.wait_for_state(await a.enqueue("mail", 1, **last), "delayed")).due > 4_000_000_000_000
        run = await a.start("shop", 1, **last)
        assert (await a.runs.get(run)).status == "running"
        assert (await a.wait_for_step(run, "shop", "delayed")).due > 4_000_000_000_000


OPTIONS: dict[str, dict[str, Any]] = {
    "timeout": {"timeout": FAR},
    "delay": {"delay": FAR},
    "backoff": {"retry": {"attempts": 2, "backoff": {"type": "fixed", "delay": FAR}}},
    "backoff in ms": {"retry": {"attempts": 2, "backoff": {"delayMs": 10**17}}},
    "cap": {"retry": {"attempts": 2, "backoff": {"maxDelayMs": 10**17}}},
    "rate": {"rate_limit": f"1/{FAR}"},
    "rate in ms": {"rate_limit": RateLimit(1, 10**17)},
    "every": {"schedule": FAR},
}
WAITS: dict[str, Any] = {
    "time": {"type": "time", "delay": FAR},
    "time in ms": {"type": "time", "delayMs": 10**400},
    "event": {"type": "event", "eventKind": "paid", "timeout": FAR},
}


@pytest.mark.parametrize("what", [*OPTIONS, "keep"])
def test_options_of_jobs(what: str) -> None:
    options = OPTIONS.get(what, {"keep_completed": FAR})
    with pytest.raises(DefinitionError, match=r"test_time_limits\.py:\d+: .*36525d"):
        job(queue="mail", **options)(shop)


@pytest.mark.parametrize("what", WAITS)
def test_options_of_steps(what: str) -> None:
    with pytest.raises(DefinitionError, match="36525d"):
        step(on="paid", wait=WAITS[what])(shop)
    with pytest.raises(DefinitionError, match="36525d"):
        Await("time", delay=FAR)


@pytest.mark.parametrize(
    "wait",
    [
        lambda ctx: ctx.wait.time(FAR),
        lambda ctx: ctx.wait.event("paid", timeout=FAR),
        lambda ctx: ctx.wait.trigger("approval", timeout=FAR),
        lambda ctx: ctx.run("call", int, timeout=FAR),
        lambda ctx: ctx.state.set("a", 1, ttl=FAR),
    ],
)
async def test_waits_inside_a_handler(memory: Any, wait: Callable[[Any], Any]) -> None:
    @flow("waits")
    async def waits(ctx: Any) -> None:
        await wait(ctx)

    async with memory(waits) as a, a.workers.background():
        run, status = await a.run_to_end("waits")
        (failed,) = await a.events_of(run, "step.failed")
        assert (status, failed.data["code"], MAX_DURATION_TEXT in failed.data["error"]) == (
            "failed",
            "bad_duration",
            True,
        )
        assert await a.waits.list(run=run) == []


async def test_a_time_inside_a_handler(memory: Any) -> None:
    @flow("waits")
    async def waits(ctx: Any) -> None:
        await ctx.wait.time(NEVER)

    async with memory(waits) as a, a.workers.background():
        run, _ = await a.run_to_end("waits")
        (failed,) = await a.events_of(run, "step.failed")
        assert (failed.data["code"], LATEST in failed.data["error"]) == ("bad_argument", True)


async def test_the_longest_wait(app: Any) -> None:
    @flow("waits")
    async def waits(ctx: Any) -> None:
        await ctx.wait.event("paid", timeout="36525d")

    async with app(waits) as a, a.workers.background():
        run = await a.start("waits")
        (wait,) = await until(lambda: a.waits.list(run=run))
        assert wait.until[:2] == "21"
