"""Cancel a plain job: final, immediate for waiting jobs, soon for running ones, also from another process."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from penstock import Node, job
from penstock.core.errors import RunError, RunFailed, UnknownJob
from penstock.jobs.reducer import reduce_job
from penstock.testing.clock import FakeClock
from penstock.testing.until import until


@job(queue="mail")
async def send(to: str) -> str:
    return f"sent to {to}"


async def _events(a: Any, queue: str, id: str) -> list[tuple[str, Any]]:
    return [(e.kind, e.data) for e in await a.events.read_all(f"nq:queue:{queue}") if e.subject == id]


@pytest.mark.spec("000-6.11", "000-7.21")
async def test_a_waiting_job_is_cancelled_and_never_starts(app: Any) -> None:
    async with app(send) as a:
        id = await a.enqueue(send, "ann")
        assert await a.jobs.cancel(id, "not needed")
        assert not await a.jobs.cancel(id)
        view = await a.jobs.get(id)
        assert (view.state.value, view.error["error"]) == ("cancelled", "not needed")
        async with a.workers.background():
            other = await a.enqueue(send, "eve")
            assert await a.jobs.result(other) == "sent to eve"
        assert await _events(a, "mail", id) == [("job.added", "ann"), ("job.cancelled", {"reason": "not needed"})]
        with pytest.raises(RunFailed, match="cancelled: not needed"):
            await a.jobs.result(id)
        history = reduce_job(await a.events.read_all("nq:queue:mail"), id)
        assert (history.status, history.reason) == ("cancelled", "not needed")


async def test_delayed_and_held_jobs_are_cancelled(app: Any, clock: FakeClock) -> None:
    async with app(send, clock=clock) as a:
        late = await a.jobs.enqueue(send, "ann", delay="1h")
        first, second, third = [await a.jobs.enqueue(send, n, order_key="k") for n in ("1", "2", "3")]
        assert (await a.jobs.get(second)).state.value == "held"
        assert await a.jobs.cancel(late)
        assert await a.jobs.cancel(second)
        a.advance_clock("2h")
        async with a.workers.background():
            assert await a.jobs.result(third) == "sent to 3"
        assert [(await a.jobs.get(id)).state.value for id in (late, first, second)] == [
            "cancelled",
            "completed",
            "cancelled",
        ]


@pytest.mark.spec("000-6.11")
async def test_a_running_async_handler_is_stopped_and_may_clean_up(app: Any) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @job(queue="slow", retry=3)
    async def slow(ctx: Any) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert ctx.cancelled
            ctx.log("too late")
            stopped.set()

    async with app(slow) as a, a.workers.background():
        id = await a.enqueue(slow)
        await started.wait()
        assert await a.jobs.cancel(id, "stop")
        await asyncio.wait_for(stopped.wait(), 20)
        await until(lambda: a.workers.active == 0)
        kinds = [kind for kind, _ in await _events(a, "slow", id)]
        assert kinds == ["job.added", "job.active", "job.cancelled"]
        assert (await a.jobs.get(id)).state.value == "cancelled"
        assert await a.list_dead_letters() == []


async def test_a_running_def_handler_is_stopped(app: Any) -> None:
    started, stopped = threading.Event(), threading.Event()

    @job(queue="slow")
    def slow() -> None:
        started.set()
        try:
            while True:
                sum(range(100))
        finally:
            stopped.set()

    async with app(slow) as a, a.workers.background():
        id = await a.enqueue(slow)
        await until(started.is_set)
        assert await a.jobs.cancel(id, "stop")
        await until(stopped.is_set)
        assert (await a.jobs.get(id)).state.value == "cancelled"


async def test_a_cancelled_job_can_be_retried(app: Any) -> None:
    async with app(send) as a:
        id = await a.enqueue(send, "ann")
        await a.jobs.cancel(id)
        assert await a.jobs.retry(id)
        async with a.workers.background():
            assert await a.jobs.result(id) == "sent to ann"


async def test_cancel_from_another_app_reaches_the_worker(shared: Any) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @job(queue="slow")
    async def slow() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with shared(slow) as a, a.workers.background(), shared() as other:
        id = await other.jobs.enqueue("slow")
        await started.wait()
        assert await other.jobs.cancel(id, "from elsewhere")
        await asyncio.wait_for(stopped.wait(), 20)
        assert (await a.jobs.get(id)).error["error"] == "from elsewhere"


@job(queue="pages")
async def page(n: int) -> int:
    return n


@job(queue="books")
async def bind(title: str, ctx: Any) -> str:
    return f"{title}: {len(await ctx.children_values())} pages"


async def test_the_children_of_a_cancelled_parent_are_cancelled(app: Any) -> None:
    async with app(page, bind, send) as a:
        inner = Node(bind, "part", children=[Node(page, 3)])
        tree = await a.jobs.enqueue_tree(Node(bind, "book", children=[Node(page, 1), inner]))
        assert await a.jobs.cancel(tree.id, "no book")
        part = next(one for one in tree.children if one.children)
        ids = [tree.id, *[one.id for one in tree.children], part.children[0].id]
        async with a.workers.background(queues=["mail"]):  # every worker serves the engine's own jobs

            async def all_cancelled() -> bool:
                return all([(await a.jobs.get(id)).state.value == "cancelled" for id in ids])

            await until(all_cancelled)
        assert f"its parent {part.id} was cancelled" in (await a.jobs.get(part.children[0].id)).error["error"]


async def test_a_parent_fails_if_its_child_is_cancelled(app: Any) -> None:
    async with app(page, bind) as a:
        tree = await a.jobs.enqueue_tree(Node(bind, "book", children=[Node(page, 1, on_failure="fail")]))
        await a.jobs.cancel(tree.children[0].id, "torn")
        async with a.workers.background():
            with pytest.raises(RunFailed, match="failed"):
                await a.jobs.result(tree.id)


async def test_a_parent_runs_without_a_cancelled_child_that_it_ignores(app: Any) -> None:
    async with app(page, bind) as a:
        children = [Node(page, 1, on_failure="ignore"), Node(page, 2)]
        tree = await a.jobs.enqueue_tree(Node(bind, "book", children=children))
        await a.jobs.cancel(tree.children[0].id, "torn")
        async with a.workers.background():
            assert await a.jobs.result(tree.id) == "book: 1 pages"
        assert await a.jobs.count_children(tree.id) == {"unprocessed": 0, "processed": 1, "ignored": 1, "failed": 0}


async def test_steps_and_unknown_jobs_are_refused(app: Any) -> None:
    from penstock import flow

    @flow("idle")
    async def idle() -> None: ...

    async with app(idle) as a:
        run = await a.start("idle")
        with pytest.raises(RunError, match="cancel the run instead"):
            await a.jobs.cancel(f"{run}.idle.1")
        with pytest.raises(UnknownJob):
            await a.jobs.cancel("nothing")


@pytest.mark.spec("000-6.10", "000-16.16", "000-7.21")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_timeout_records_that_the_attempt_was_cancelled(app: Any, is_async: bool) -> None:
    forever = threading.Event()

    @job(queue="slow", timeout="30ms", retry={"attempts": 2, "backoff": {"delay": "1ms", "jitter": False}})
    async def slow() -> None:
        await asyncio.Event().wait()

    @job(queue="slow", timeout="30ms", retry={"attempts": 2, "backoff": {"delay": "1ms", "jitter": False}})
    def slow_thread() -> None:
        while not forever.wait(0.001):
            pass

    handler = slow if is_async else slow_thread
    async with app(handler) as a, a.workers.background():
        id = await a.enqueue(handler)
        with pytest.raises(RunFailed, match="timeout"):
            await a.jobs.result(id)
        events = [e for e in await a.events.read_all("nq:queue:slow") if e.subject == id]
        found = [(e.kind, e.meta["attempt"]) for e in events if e.kind in ("job.cancelled", "job.failed")]
        assert found == [("job.cancelled", 1), ("job.failed", 1), ("job.cancelled", 2), ("job.failed", 2)]
        assert {e.data["reason"] for e in events if e.kind == "job.cancelled"} == {"timeout"}
        assert reduce_job(events).status == "failed"
        assert (await a.jobs.get(id)).state.value == "failed"
