"""Cancel: final, immediate for waiting jobs, soon for running ones, with exactly one end in every race."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from penstock import flow, step
from penstock.core.errors import RunCancelled, UnknownRun
from penstock.core.ids import step_job_id
from penstock.testing.clock import FakeClock
from penstock.testing.until import until

TERMINAL = ("flow.completed", "flow.failed", "flow.cancelled", "flow.compensated")


@flow("idle")
async def idle() -> str:
    return "done"


@pytest.mark.spec("000-7.25")
async def test_a_queued_run_is_cancelled_and_never_starts(app: Any) -> None:
    async with app(idle) as a:
        run = await a.start("idle")
        assert await a.runs.cancel(run, "not needed")
        assert (await a.jobs.get(step_job_id(run, "idle", 1))).state.value == "cancelled"
        async with a.workers.background():
            assert await a.run_for_result("idle") == "done"
        assert await a.kinds(run) == ["flow.started", "flow.cancelled"]
        with pytest.raises(RunCancelled, match="not needed"):
            await a.result(run)


async def test_a_delayed_run_is_cancelled(app: Any, clock: FakeClock) -> None:
    async with app(idle, clock=clock) as a, a.workers.background():
        run = await a.start("idle", delay="1h")
        assert await a.runs.cancel(run)
        a.advance_clock("2h")
        assert await a.run_for_result("idle") == "done"
        assert await a.kinds(run) == ["flow.started", "flow.cancelled"]


async def test_a_run_waiting_for_its_retry_is_cancelled(app: Any, clock: FakeClock) -> None:
    @flow("retries", retry={"attempts": 5, "backoff": {"delay": "1m"}})
    async def retries() -> None:
        raise ValueError("again")

    async with app(retries, clock=clock) as a, a.workers.background():
        run = await a.start("retries")
        await a.wait_for_step(run, "retries", "delayed")
        await a.runs.cancel(run)
        a.advance_clock("10m")
        assert (await a.wait_for_step(run, "retries", "cancelled")).attempt == 1
        assert (await a.kinds(run))[-1] == "flow.cancelled"
        assert await a.list_dead_letters() == []


async def test_a_running_async_handler_is_stopped_and_may_clean_up(app: Any) -> None:
    cancelled = asyncio.Event()
    started = asyncio.Event()

    @flow("endless", emits=["late"])
    async def endless(ctx: Any) -> None:
        ctx.emit("late")
        started.set()
        try:
            await asyncio.Event().wait()
        except Exception:  # a plain except must not eat it
            pass
        finally:
            assert ctx.cancelled
            cancelled.set()

    async with app(endless, lease="30s") as a, a.workers.background():
        run = await a.start("endless")
        await asyncio.wait_for(started.wait(), 20)
        assert await a.runs.cancel(run, "enough")
        await asyncio.wait_for(cancelled.wait(), 20)
        await a.wait_for_step(run, "endless", "cancelled")
        assert await a.kinds(run) == ["flow.started", "step.started", "flow.cancelled"]
        view = await a.runs.get(run)
        assert (view.status, view.reason, view.steps["endless"].status) == ("cancelled", "enough", "cancelled")


async def test_a_running_thread_is_stopped(app: Any) -> None:
    started, stopped = threading.Event(), threading.Event()

    @flow("spinning")
    def spins(ctx: Any) -> None:
        started.set()
        try:
            while True:
                sum(range(100))
        finally:
            stopped.set()

    async with app(spins, lease="30s") as a, a.workers.background():
        run = await a.start("spinning")
        await until(started.is_set)
        await a.runs.cancel(run)
        await until(stopped.is_set)
        await a.wait_for_step(run, "spins", "cancelled")
        assert (await a.kinds(run))[-1] == "flow.cancelled"


async def test_a_thread_can_ask_whether_it_is_cancelled(app: Any) -> None:
    started, seen = threading.Event(), threading.Event()

    @flow("polite")
    def polite(ctx: Any) -> str:
        try:
            started.set()
            while not ctx.cancelled:
                pass
        finally:
            seen.set()
        return "left by itself"

    async with app(polite) as a, a.workers.background():
        run = await a.start("polite")
        await until(started.is_set)
        await a.runs.cancel(run)
        await until(seen.is_set)
        await a.wait_for_step(run, "polite", "cancelled")


async def test_cancelling_frees_the_slot(app: Any) -> None:
    started = asyncio.Event()

    @flow("endless")
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    async with app(endless, idle, concurrency=1) as a, a.workers.background():
        run = await a.start("endless")
        await asyncio.wait_for(started.wait(), 20)
        await a.runs.cancel(run)
        assert await a.run_for_result("idle") == "done"


async def test_cancelled_from_another_app(shared: Any) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @flow("endless")
    async def endless() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with shared(endless) as worker, shared(endless) as other, worker.workers.background():
        run = await other.start("endless")
        await asyncio.wait_for(started.wait(), 20)
        assert await other.runs.cancel(run)
        await asyncio.wait_for(stopped.wait(), 20)
        await other.wait_for_step(run, "endless", "cancelled")


async def test_cancelling_is_final(app: Any) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @flow("two", emits=["go"])
    async def begin(ctx: Any) -> str:
        ctx.emit("go", "late")
        ctx.state.set("k", "late")
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue  # a handler that will not listen
        return "late"

    @step(on="go")
    async def never() -> None: ...

    async with app(begin, never) as a, a.workers.background():
        run = await a.start("two")
        await asyncio.wait_for(started.wait(), 20)
        assert await a.runs.cancel(run)
        before = await a.stream(run)
        release.set()
        await a.wait_for_step(run, "begin", "cancelled")
        assert await a.stream(run) == before, "a late commit changes nothing"
        assert await a.state.of_run(run).get("k") is None
        assert not await a.runs.cancel(run), "it had ended before"
        row = await a.store.run(run)
        assert (row.status, row.closed) == ("cancelled", True)


async def test_an_ended_run_cannot_be_cancelled(app: Any) -> None:
    async with app(idle) as a, a.workers.background():
        run, _ = await a.run_to_end("idle")
        before = await a.stream(run)
        assert not await a.runs.cancel(run)
        assert await a.stream(run) == before
        with pytest.raises(UnknownRun):
            await a.runs.cancel("missing")


@pytest.mark.spec("000-7.25")
async def test_the_next_step_of_a_cancelled_run_does_not_start(app: Any) -> None:
    started, release = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    @flow("three", emits=["go"])
    async def begin(ctx: Any) -> None:
        ctx.emit("go")

    @step(on="go", emits=["next"])
    async def middle(ctx: Any) -> None:
        started.set()
        await release.wait()
        ctx.emit("next")

    @step(on="next")
    async def last() -> None:
        ran.append("last")

    async with app(begin, middle, last) as a, a.workers.background():
        run = await a.start("three")
        await asyncio.wait_for(started.wait(), 20)
        await a.runs.cancel(run)
        release.set()
        await a.wait_for_step(run, "middle", "cancelled")
        assert await a.store.job(step_job_id(run, "last", 1)) is None
    assert ran == []


async def test_cancel_racing_completion_ends_each_run_exactly_once(app: Any) -> None:
    @flow("racing", emits=["go"])
    async def begin(ctx: Any) -> None:
        ctx.emit("go")

    @step(on="go")
    async def end() -> str:
        return "end"

    async with app(begin, end, concurrency=50) as a, a.workers.background():
        runs = [await a.start("racing") for _ in range(200)]
        answers = await asyncio.gather(*(a.runs.cancel(run) for run in runs))
        for run, cancelled in zip(runs, answers, strict=True):
            status = await a.wait_for_end(run)
            ends = [kind for kind in await a.kinds(run) if kind in TERMINAL]
            assert ends == [f"flow.{status}"]
            assert cancelled == (status == "cancelled")


async def test_cancel_at_the_moment_of_completion(app: Any) -> None:
    """Each run is cancelled from its own last step, so that both commits run concurrently."""
    cancels: list[Any] = []
    cancel: Any = None

    @flow("cancel_self")
    async def cancel_self(ctx: Any) -> None:
        cancels.append(asyncio.create_task(cancel(ctx.run_id)))

    async with app(cancel_self, concurrency=50) as a, a.workers.background():
        cancel = a.runs.cancel
        runs = [await a.start("cancel_self") for _ in range(100)]
        statuses = [await a.wait_for_end(run) for run in runs]
        answers = await asyncio.gather(*cancels)
        assert set(statuses) <= {"completed", "cancelled"}
        assert statuses.count("cancelled") == answers.count(True)
        for run, status in zip(runs, statuses, strict=True):
            assert [k for k in await a.kinds(run) if k in TERMINAL] == [f"flow.{status}"]
