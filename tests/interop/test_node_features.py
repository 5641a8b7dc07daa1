"""Features that we share with BullMQ: each side honours the options of the other."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App, Context, RateLimited, job
from penstock.ports.unit import ClaimRequest, Completed, JobState, QueueDemand, Unit
from penstock.testing.until import until

pytestmark = pytest.mark.xdist_group("interop")
QUEUE = "mail"


@job(queue=QUEUE, keep_completed={"count": 2, "age": "1h"}, keep_failed=0, retry=3)
async def kept(input: Any) -> Any:
    return input


@job(queue=QUEUE, retry={"attempts": 2, "backoff": {"type": "fixed", "delay": "10ms", "jitter": False}})
async def talk(input: Any, ctx: Context) -> Any:
    ctx.log.info(f"letter to {input}", stamps=2)
    await ctx.progress({"sent": 1})
    if input == "nobody":
        raise ValueError("no such address")
    return input


async def _is_removed(app: App, id: str) -> None:
    async def removed() -> bool:
        return await app.store.job(id) is None

    await until(removed, 30)


async def _done(app: App, id: str, state: JobState = JobState.COMPLETED) -> Any:
    async def there() -> Any:
        row = await app.store.job(id)
        return row if row is not None and row.state is state else None

    return await until(there, 30)


# Retention


async def test_node_applies_our_retention(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[kept]) as app:
        waiting = await app.enqueue(QUEUE, 0)
        opts = (await node.call("job", queue=QUEUE, id=waiting))["opts"]
        assert (opts["removeOnComplete"], opts["removeOnFail"]) == ({"age": 3600, "count": 2}, True)
        ids = [waiting, *[await app.enqueue(QUEUE, n) for n in (1, 2)]]
        gone = await app.enqueue(QUEUE, 3, keep_completed=0)
        await node.call("work", queue=QUEUE)
        await _is_removed(app, gone)
        await _is_removed(app, ids[0])
        assert (await node.call("counts", queue=QUEUE))["completed"] == 2


async def test_we_apply_the_retention_of_node(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[talk]) as app, app.workers.background():
        await node.call("events", queue=QUEUE)
        for opts, left in (({"removeOnComplete": True}, 0), ({"removeOnComplete": {"count": 1}}, 1), ({}, 2)):
            id = await node.call("add", queue=QUEUE, name="send", data=1, opts=opts)
            await node.wait_for_event("completed", id)
            assert (await node.call("counts", queue=QUEUE))["completed"] == left
        bad = await node.call("add", queue=QUEUE, name="send", data="nobody", opts={"removeOnFail": True})
        await node.wait_for_event("failed", bad)
        await _is_removed(app, bad)
        assert (await node.call("counts", queue=QUEUE))["failed"] == 0


# Order keys


async def test_a_job_that_node_ends_lets_the_next_of_its_key_follow(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[]) as app:
        ids = await app.jobs.enqueue_many(QUEUE, [1, 2, 3], order_key="ada")
        await node.call("work", queue=QUEUE)
        await _done(app, ids[0])
        assert [(await app.jobs.get(id)).state for id in ids[1:]] == ["held", "held"], "Node takes no held job"
        request = ClaimRequest((QueueDemand(QUEUE, 1),), 30_000, "w1")

        async def ask() -> bool:
            """Claim as a worker does: Node or we take the job that this releases."""
            for claim in (await app.store.claim(request)).claims:
                end = Unit(f"end-{claim.job}", claim=claim, outcome=Completed(), order_key="ada")
                await app.store.commit([end])
            return (await app.jobs.get(ids[2])).state is JobState.COMPLETED

        await until(ask, 30)
        assert (await app.jobs.get(ids[1])).state is JobState.COMPLETED


# Deduplication


async def test_our_deduplication_key_applies_in_node(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[kept]) as app:
        await node.call("events", queue=QUEUE)
        first = await app.enqueue(QUEUE, 1, dedupe="ada")
        assert await node.call("add", queue=QUEUE, name="send", data=2, opts={"deduplication": {"id": "ada"}}) == first
        assert await node.call("dedupe", queue=QUEUE, key="ada") == first
        assert (await node.wait_for_event("deduplicated", first))["deduplicationId"] == "ada"
        assert (await node.call("job", queue=QUEUE, id=first))["deduplicationId"] == "ada"
        await node.call("work", queue=QUEUE)
        await _done(app, first)
        assert await app.enqueue(QUEUE, 3, dedupe="ada") != first


async def test_a_deduplication_key_of_node_applies_here(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[talk]) as app:
        held = {"deduplication": {"id": "ada"}}
        first = await node.call("add", queue=QUEUE, name="send", data=1, opts=held)
        assert await app.enqueue(QUEUE, 2, dedupe="ada") == first
        async with app.workers.background():
            await node.job_in(QUEUE, first, "completed")
        assert await node.call("dedupe", queue=QUEUE, key="ada") is None
        timed = {"deduplication": {"id": "bob", "ttl": 60_000}}
        second = await node.call("add", queue=QUEUE, name="send", data=1, opts=timed)
        async with app.workers.background():
            await node.job_in(QUEUE, second, "completed")
        assert await app.enqueue(QUEUE, 2, dedupe="bob", dedupe_ttl="1m") == second


# Limits


async def test_our_rate_limit_stops_node(node: Any, redis_url: str) -> None:
    @job(queue=QUEUE, retry=1)
    async def call() -> None:
        raise RateLimited("1m")

    async with App(redis_url, handlers=[call]) as app:
        async with app.workers.background():
            id = await app.enqueue(QUEUE, 1)
            await until(lambda: node.call("held", queue=QUEUE), 30)
            found = await node.job_in(QUEUE, id, "waiting")
            assert found["attemptsMade"] == 0
        assert 50_000 < await node.call("held", queue=QUEUE) <= 60_000


async def test_a_rate_limit_of_node_stops_us(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[talk]) as app:
        await node.call("hold", queue=QUEUE, ms=60_000)
        async with app.workers.background():
            id = await app.enqueue(QUEUE, 1)
            await app.store.claim(_ask())
            assert (await app.store.job(id)).state is JobState.WAITING  # type: ignore[union-attr]
            await app.store._client.call("DEL", f"bull:{QUEUE}:limiter")  # type: ignore[attr-defined]
            app.store.signals.notify_all()
            await _done(app, id)


async def test_a_limit_is_shared_with_a_worker_in_node(node: Any, redis_url: str) -> None:
    """The window is a minute, so there is only one: both sides together start no more jobs than the limit."""

    @job(queue=QUEUE, rate_limit="5/1m")
    async def ours(input: Any) -> str:
        return "ours"

    async with App(redis_url, handlers=[ours]) as app:
        await app.jobs.enqueue_many(QUEUE, range(30))
        await node.call("work", queue=QUEUE, limiter={"max": 5, "duration": 60_000})
        async with app.workers.background():

            async def spent() -> bool:
                return bool((await node.call("counts", queue=QUEUE))["completed"] >= 5)

            await until(spent, 30)
            assert (await app.store.claim(_ask(5))).claims == []
            counts = await node.call("counts", queue=QUEUE)
        assert (counts["completed"], counts["active"]) == (5, 0)


def _ask(rate: int | None = None) -> Any:
    from penstock.ports.unit import ClaimRequest, QueueDemand, RateLimit

    return ClaimRequest((QueueDemand(QUEUE, 10, RateLimit(rate, 60_000) if rate else None),), 30_000, "w1")


# Attempts, failures and metrics


@pytest.mark.spec("000-4.1.12", "000-4.2.4")
async def test_node_shows_attempts_and_failures_of_our_jobs(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[talk]) as app:
        id = await app.enqueue(QUEUE, "nobody")
        opts = (await node.call("job", queue=QUEUE, id=id))["opts"]
        assert (opts["attempts"], opts["backoff"]) == (2, {"type": "fixed", "delay": 10})
        async with app.workers.background():
            failed = await node.job_in(QUEUE, id, "failed")
        assert (failed["attemptsMade"], failed["failedReason"]) == (2, "no such address")
        assert len(failed["stacktrace"]) == 2
        assert "ValueError: no such address" in failed["stacktrace"][0]
        assert "talk" in failed["stacktrace"][0]
        assert failed["progress"] == {"sent": 1}
        logs = await node.call("logs", queue=QUEUE, id=id)
        assert logs == {"logs": ['[info] letter to nobody {"stamps":2}'] * 2, "count": 2}


@pytest.mark.spec("000-4.1.12")
async def test_node_retries_our_job_as_often_as_we_do(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[talk]) as app:
        await node.call("work", queue=QUEUE, fail=True)
        id = await app.enqueue(QUEUE, 1)
        failed = await node.job_in(QUEUE, id, "failed")
        assert failed["attemptsMade"] == 2


async def test_metrics_count_our_jobs(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[talk]) as app, app.workers.background():
        for n in range(3):
            await app.jobs.result(await app.enqueue(QUEUE, n))
        bad = await app.enqueue(QUEUE, "nobody")
        await _done(app, bad, JobState.FAILED)
        assert [await node.call("metrics", queue=QUEUE, of=of) for of in ("completed", "failed")] == [3, 1]
