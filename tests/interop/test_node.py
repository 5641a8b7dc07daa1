"""BullMQ for Node and Penstock work on the same queues."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App, Context, job
from penstock.core.errors import StoreError
from penstock.ports.unit import ClaimRequest, JobState, QueueDemand
from penstock.stores.redis import RedisStore
from penstock.testing.until import until

pytestmark = pytest.mark.xdist_group("interop")
PAYLOAD = {"text": "\U0001f9ea é \u2028", "list": [], "map": {}, "n": 2**53 - 1, "deep": {"a": [1, {"b": None}]}}


@job(queue="mail", retry=1)
async def send(input: Any, ctx: Context) -> Any:
    if input == "fail":
        raise ValueError("no such letter")
    await ctx.progress(50)
    return {"sent": input}


async def _state(app: App, id: str, state: JobState) -> Any:
    async def there() -> Any:
        row = await app.store.job(id)
        return row if row is not None and row.state is state else None

    return await until(there, 30)


@pytest.mark.spec("000-4.1.8")
async def test_a_node_worker_runs_our_jobs(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app:
        await node.call("work", queue="mail")
        id = await app.enqueue("mail", PAYLOAD, key="letter-1")
        row = await _state(app, id, JobState.COMPLETED)
        found = await node.call("job", queue="mail", id=id)
        assert found["returnvalue"]["by"] == "node"
        assert found["returnvalue"]["seen"] == PAYLOAD
        assert row.attempt == 1


async def test_a_node_worker_runs_delayed_and_prioritized_jobs(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app:
        await node.call("work", queue="mail")
        await app.enqueue("mail", 1, key="later", delay="300ms")
        await app.enqueue("mail", 2, key="second", priority=7)
        for id in ("later", "second"):
            await _state(app, id, JobState.COMPLETED)


@pytest.mark.spec("000-4.1.8", "000-5.7")
async def test_we_run_jobs_of_a_node_producer(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app:
        await node.call("events", queue="mail")
        async with app.workers.background():
            for opts in ({}, {"jobId": "mine"}, {"priority": 3}, {"delay": 200}):
                id = await node.call("add", queue="mail", name="send", data=PAYLOAD, opts=opts)
                done = await node.job_in("mail", id, "completed")
                assert done["returnvalue"] == {"sent": PAYLOAD}
                assert (await node.wait_for_event("completed", id))["prev"] == "active"
                assert (await node.wait_for_event("progress", id))["data"] == 50


async def test_node_sees_our_failures(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app:
        await node.call("events", queue="mail")
        async with app.workers.background():
            id = await node.call("add", queue="mail", name="send", data="fail")
            failed = await node.job_in("mail", id, "failed")
            assert "no such letter" in failed["failedReason"]
            assert "no such letter" in (await node.wait_for_event("failed", id))["failedReason"]


@pytest.mark.spec("004-7.2")
async def test_node_receives_events_of_our_jobs(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app:
        await node.call("events", queue="mail")
        id = await app.enqueue("mail", 1, key="letter-1")
        assert (await node.call("job", queue="mail", id=id))["state"] == "waiting"
        assert (await node.call("counts", queue="mail"))["waiting"] == 1
        async with app.workers.background():
            await _state(app, id, JobState.COMPLETED)
        for event in ("added", "waiting", "active", "completed"):
            await node.wait_for_event(event, id)


async def test_pause_works_both_ways(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app:
        await node.call("pause", queue="mail")
        id = await app.enqueue("mail", 1, key="letter-1")
        store = app.store
        ask = ClaimRequest((QueueDemand("mail", 1),), 30_000, "w1")
        assert (await store.claim(ask)).claims == []
        await node.call("resume", queue="mail")
        assert [claim.job for claim in (await store.claim(ask)).claims] == [id]
        await app.queues.pause("mail")
        assert await node.call("paused", queue="mail") is True
        other = await node.call("add", queue="mail", name="send", data=2)
        await node.call("work", queue="mail")
        await app.queues.resume("mail")
        assert await node.call("paused", queue="mail") is False
        await node.job_in("mail", other, "completed")


async def test_a_node_parent_with_our_children(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app:
        await node.call("work", queue="parents")
        children = [{"name": "send", "queueName": "mail", "data": n} for n in (1, 2)]
        tree = {"name": "all", "queueName": "parents", "data": {}, "children": children}
        parent = await node.call("flow", tree=tree)
        assert (await node.call("job", queue="parents", id=parent))["state"] == "waiting-children"
        async with app.workers.background():
            await node.job_in("parents", parent, "completed")
        values = (await node.call("children", queue="parents", id=parent)).values()
        assert sorted(value["sent"] for value in values) == [1, 2]


async def test_our_parent_with_node_children(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app:
        children = [{"name": "any", "queueName": "others", "data": n} for n in (1, 2)]
        tree = {"name": "send", "queueName": "mail", "data": "all", "children": children}
        parent = await node.call("flow", tree=tree)
        async with app.workers.background():
            await node.call("work", queue="others")
            assert (await node.job_in("mail", parent, "completed"))["returnvalue"] == {"sent": "all"}


@pytest.mark.parametrize("when", [{"every": 400}, {"pattern": "* * * * * *"}], ids=["every", "cron"])
async def test_a_node_scheduler_continues_with_our_worker(node: Any, redis_url: str, when: dict[str, Any]) -> None:
    async with App(redis_url, handlers=[send]) as app:
        await node.call("events", queue="mail")
        async with app.workers.background():
            first = await node.call("schedule", queue="mail", id="often", when=when, name="send", data="tick")
            assert (await node.job_in("mail", first, "completed"))["returnvalue"] == {"sent": "tick"}
            done = lambda: [one["jobId"] for one in node.events if one["event"] == "completed"]  # noqa: E731
            await until(lambda: len(done()) >= 3, 30)
            assert len(done()) == len(set(done())), "each slot once"


async def test_a_queue_of_an_old_bullmq_is_refused(redis_url: str) -> None:
    store = RedisStore(redis_url)
    await store.open()
    try:
        await store._client.call("HSET", "bull:mail:meta", "version", "bullmq:5.81.5")
        with pytest.raises(StoreError, match=r"'mail' is used by bullmq:5.81.5"):
            await store.claim(ClaimRequest((QueueDemand("mail", 1),), 30_000, "w1"))
    finally:
        await store.close()
