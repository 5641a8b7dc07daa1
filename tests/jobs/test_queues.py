"""`app.queues`: pause, resume, counts, drain, and the jobs in a queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import flow, job
from penstock.core.errors import RunError, UnknownJob, UnknownQueue
from penstock.core.ids import step_job_id
from penstock.testing.clock import FakeClock


@job(queue="echo")
async def echo(input: Any) -> Any:
    return input


@pytest.mark.spec("000-4.1.7", "004-1.2")
async def test_a_paused_queue_starts_no_job(app: Any) -> None:
    async with app(echo) as a, a.workers.background():
        await a.queues.pause("echo")
        id = await a.enqueue("echo", 1)
        a.wake_all()
        (row,) = await a.queues.list()
        assert (row.paused, row.counts["waiting"]) == (True, 1)
        await a.queues.resume("echo")
        assert await a.jobs.result(id, timeout=20) == 1


async def test_a_running_job_ends_while_its_queue_is_paused(app: Any) -> None:
    release = asyncio.Event()

    @job(queue="q", concurrency=1)
    async def held() -> str:
        await release.wait()
        return "ended"

    async with app(held) as a, a.workers.background():
        first, second = await a.enqueue("q"), await a.enqueue("q")
        await a.wait_for_state(first, "active")
        await a.queues.pause("q")
        release.set()
        assert await a.jobs.result(first, timeout=20) == "ended"
        assert (await a.jobs.get(second)).state.value == "waiting"
        await a.queues.resume("q")
        assert await a.jobs.result(second, timeout=20) == "ended"


async def test_a_pause_holds_for_every_worker(shared: Any) -> None:
    async with shared(echo) as a, shared(echo) as b, b.workers.background():
        await a.queues.pause("echo")
        id = await a.enqueue("echo", 1)
        assert (await b.queues.list())[0].paused
        await a.queues.resume("echo")
        assert await a.jobs.result(id, timeout=20) == 1


async def test_a_delayed_job_can_be_promoted(app: Any, clock: FakeClock) -> None:
    async with app(echo, clock=clock) as a, a.workers.background():
        id = await a.enqueue("echo", 1, delay="1d")
        assert await a.jobs.promote(id)
        assert await a.jobs.result(id, timeout=20) == 1
        assert not await a.jobs.promote(id)


async def test_a_failed_job_can_be_retried(app: Any) -> None:
    broken = {"yes": True}

    @job(queue="q", retry={"attempts": 2, "backoff": {"delay": "1ms"}})
    async def work() -> str:
        if broken["yes"]:
            raise ValueError("broken")
        return "repaired"

    async with app(work) as a, a.workers.background():
        id = await a.enqueue("q")
        assert (await a.wait_for_state(id, "failed")).failures == 2
        broken["yes"] = False
        assert await a.jobs.retry(id)
        assert await a.jobs.result(id, timeout=20) == "repaired"
        assert not await a.jobs.retry(id), "a completed one is not run again"


async def test_every_action_on_an_unknown_job_raises(app: Any) -> None:
    async with app(echo) as a:
        for act in (a.jobs.promote, a.jobs.retry, a.jobs.remove, a.jobs.get):
            with pytest.raises(UnknownJob, match="no job with id 'nobody'"):
                await act("nobody")


@pytest.mark.spec("000-15.3", "004-1.2")
async def test_remove_and_drain(app: Any, clock: FakeClock) -> None:
    async with app(echo, clock=clock) as a:
        ids = await a.jobs.enqueue_many("echo", range(5))
        late = await a.enqueue("echo", delay="1h")
        assert await a.jobs.remove(ids[0])
        assert await a.store.job(ids[0]) is None
        assert await a.queues.drain("echo") == 4
        assert (await a.jobs.get(late)).state.value == "delayed"
        assert await a.queues.drain("echo", delayed=True) == 1
        assert sum((await a.queues.counts("echo")).values()) == 0


async def test_jobs_of_a_run_cannot_be_changed_as_plain_jobs(app: Any) -> None:
    @flow("shop", queue="q")
    async def begin() -> None: ...

    async with app(begin) as a:
        run = await a.start("shop")
        with pytest.raises(RunError, match="cancel the run instead"):
            await a.jobs.remove(step_job_id(run, "begin", 1))
        assert await a.queues.drain("q", delayed=True) == 0
        assert not await a.jobs.retry(step_job_id(run, "begin", 1))
        async with a.workers.background():
            assert await a.wait_for_end(run) == "completed"


async def test_a_running_job_cannot_be_removed(app: Any) -> None:
    release = asyncio.Event()

    @job(queue="q")
    async def held() -> None:
        await release.wait()

    async with app(held) as a, a.workers.background():
        id = await a.enqueue("q")
        await a.wait_for_state(id, "active")
        assert not await a.jobs.remove(id)
        release.set()
        await a.jobs.result(id, timeout=20)


async def test_pages_of_jobs_in_every_state(app: Any) -> None:
    async with app(echo) as a:
        ids = await a.jobs.enqueue_many("echo", range(7))
        first = await a.jobs.list("echo", limit=3)
        second = await a.jobs.list("echo", "waiting", after=first[-1].id, limit=3)
        third = await a.jobs.list("echo", after=second[-1].id, limit=3)
        assert [row.id for row in (*first, *second, *third)] == ids
        async with a.workers.background():
            for id in ids:
                await a.wait_for_state(id, "completed")
        assert {row.id for row in await a.jobs.list("echo", "completed")} == set(ids)
        with pytest.raises(ValueError, match="nonsense"):
            await a.jobs.list("echo", "nonsense")


async def test_an_unknown_queue_error_lists_the_known_queues(memory: Any) -> None:
    async with memory(echo) as a:
        for ask in (a.queues.pause, a.queues.resume, a.queues.counts, a.queues.drain):
            with pytest.raises(UnknownQueue, match="did you mean 'echo'"):
                await ask("ecko")


@pytest.mark.spec("000-4.1.6", "000-16.12", "004-1.4")
async def test_queue_events_can_be_followed(app: Any) -> None:
    async with app(echo) as a, a.workers.background():
        id = await a.enqueue("echo", 1)
        kinds = []
        async for event in a.queues.events("echo"):
            kinds.append(event.kind)
            if event.kind == "job.completed":
                break
        assert kinds == ["job.added", "job.active", "job.completed"]
        assert await a.jobs.result(id) == 1
