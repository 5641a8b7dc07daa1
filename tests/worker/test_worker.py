"""The worker: leases kept and lost, crashes counted, an orderly stop, several workers on one store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

from penstock import SyncApp, flow, job, step
from penstock.core.errors import ConfigError, StaleAttempt, UnknownQueue
from penstock.core.ids import step_job_id
from penstock.ports.unit import ClaimRequest, QueueDemand, Unit
from penstock.testing.clock import FakeClock
from penstock.testing.until import until
from penstock.worker.leases import LeaseRenewer
from penstock.worker.quarantine import alone_memo

LEASE = "10m"  # renewed by the real clock after a third of it: not during a test


@pytest.fixture
def no_early_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not renew when another process has changed the store: that would be after the clock has moved on."""
    monkeypatch.setattr(LeaseRenewer, "renew_soon", lambda _self: None)


async def die_with(app: Any, queue: str, *, is_alone: bool = False) -> None:
    """A worker that claims a job and disappears."""
    (claim,) = (await app.store.claim(ClaimRequest((QueueDemand(queue, 1),), 30_000, "doomed"))).claims
    if is_alone:
        await app.store.commit([Unit("alone", claim=claim, memos=[alone_memo(claim)])])


# Lost leases


class Slow:
    """A handler whose first attempt waits for `release`; the second ends at once."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.release = asyncio.Event()
        self.late: list[BaseException | str] = []

    async def __call__(self, ctx: Any, late: Any) -> str:
        if ctx.attempt == 1:
            self.began.set()
            try:
                await self.release.wait()
                await late(ctx)
                self.late.append("went through")
            except BaseException as problem:
                self.late.append(problem)
                raise
        return f"attempt {ctx.attempt}"


async def returns(ctx: Any) -> None:
    ctx.emit("late")
    ctx.state.set("late", True)


async def fails(ctx: Any) -> None:
    raise ValueError("late")


@pytest.mark.usefixtures("no_early_renewals")
@pytest.mark.parametrize("late", [returns, fails])
async def test_a_lost_lease_records_nothing_twice(shared: Any, clock: FakeClock, late: Any) -> None:
    slow = Slow()

    @flow("slow", retry=3, emits=["late"])
    async def work(ctx: Any) -> str:
        return await slow(ctx, late)

    async with shared(work, clock=clock, lease=LEASE) as one, shared(work, clock=clock, lease=LEASE) as two:
        run = await one.start("slow")
        async with one.workers.background(name="one", concurrency=1):
            await asyncio.wait_for(slow.began.wait(), 20)
            clock.advance("601s")
            async with two.workers.background(name="two"):
                assert await two.result(run, timeout=20) == "attempt 2"
            before = await two.stream(run)
            slow.release.set()
            await until(lambda: slow.late)
        assert await two.stream(run) == before
        assert [(e.kind, e.meta["attempt"]) for e in before if e.step == "work"] == [
            ("step.started", 1),
            ("step.started", 2),
            ("step.completed", 2),
        ]
        assert [e.meta["worker"] for e in before if e.kind == "step.started"] == ["one", "two"]
        assert await two.state.of_run(run).get("late") is None
        row = await two.jobs.get(step_job_id(run, "work", 1))
        assert (row.attempt, row.failures, row.crashes) == (2, 0, 1)
        assert await two.list_dead_letters() == []


@pytest.mark.usefixtures("no_early_renewals")
async def test_a_plain_jobs_lost_lease_records_nothing_twice(shared: Any, clock: FakeClock) -> None:
    slow = Slow()

    @job(queue="slow")
    async def work(ctx: Any) -> str:
        return await slow(ctx, returns)

    async with shared(work, clock=clock, lease=LEASE) as one, shared(work, clock=clock, lease=LEASE) as two:
        id = await one.enqueue("slow")
        async with one.workers.background(concurrency=1):
            await asyncio.wait_for(slow.began.wait(), 20)
            clock.advance("601s")
            async with two.workers.background():
                assert await two.jobs.result(id, timeout=20) == "attempt 2"
            before = await two.job_events("slow")
            slow.release.set()
            await until(lambda: slow.late)
        assert await two.job_events("slow") == before
        assert [e.kind for e in before] == ["job.added", "job.active", "job.active", "job.completed"]


@pytest.mark.usefixtures("no_early_renewals")
async def test_a_patch_under_a_lost_lease_is_refused(shared: Any, clock: FakeClock) -> None:
    slow = Slow()

    async def patches(ctx: Any) -> None:
        await ctx.shared.patch("n", lambda n: (n or 0) + 1)

    @flow("slow")
    async def work(ctx: Any) -> str:
        return await slow(ctx, patches)

    async with shared(work, clock=clock, lease=LEASE) as one, shared(work, clock=clock, lease=LEASE) as two:
        run = await one.start("slow")
        async with one.workers.background(concurrency=1):
            await asyncio.wait_for(slow.began.wait(), 20)
            clock.advance("601s")
            async with two.workers.background():
                await two.wait_for_end(run)
            slow.release.set()
            await until(lambda: slow.late)
        # Refused by the store, or stopped by the lease keeper before it came to that.
        assert isinstance(slow.late[0], StaleAttempt | asyncio.CancelledError)
        assert await two.state.get("n") is None


async def test_a_log_under_a_lost_lease_stops_the_handler(shared: Any, clock: FakeClock) -> None:
    slow = Slow()

    async def logs(ctx: Any) -> None:
        ctx.log("still here")
        await asyncio.Event().wait()

    @flow("slow")
    async def work(ctx: Any) -> str:
        return await slow(ctx, logs)

    async with shared(work, clock=clock, lease=LEASE) as one, shared(work, clock=clock, lease=LEASE) as two:
        run = await one.start("slow")
        async with one.workers.background(concurrency=1):
            await asyncio.wait_for(slow.began.wait(), 20)
            clock.advance("601s")
            async with two.workers.background():
                await two.wait_for_end(run)
            slow.release.set()
            await until(lambda: slow.late)
            assert isinstance(slow.late[0], asyncio.CancelledError)
        assert "log" not in await two.kinds(run)


async def test_a_handler_that_blocks_the_loop_keeps_its_lease(shared: Any, shared_url: str) -> None:
    @flow("blocking")
    async def blocks(ctx: Any) -> int:
        time.sleep(1.5)  # three leases, and the event loop stands still
        return ctx.attempt

    # The other worker has a loop of its own, or it would stand still too.
    with SyncApp(shared_url, handlers=[blocks], lease="500ms") as other:
        async with shared(blocks, lease="500ms") as a, a.workers.background():
            run = await a.start("blocking")
            await a.wait_for_step(run, "blocks", "completed", "active")
            other.workers.start()
            assert await a.result(run, timeout=20) == 1
            row = await a.jobs.get(step_job_id(run, "blocks", 1))
            assert (row.attempt, row.crashes) == (1, 0)


# Crashes


async def test_a_job_of_a_dead_worker_runs_again(app: Any, clock: FakeClock) -> None:
    @flow("sturdy")
    async def work(ctx: Any) -> int:
        return ctx.attempt

    async with app(work, clock=clock) as a:
        run = await a.start("sturdy")
        await die_with(a, "default")
        a.advance_clock("31s")
        async with a.workers.background():
            assert await a.result(run, timeout=20) == 2
        row = await a.jobs.get(step_job_id(run, "work", 1))
        assert (row.crashes, row.failures) == (1, 0)
        assert (await a.events_of(run, "step.started"))[0].meta["worker"] == "doomed"


@pytest.mark.parametrize(("cap", "runs"), [(0, 1), (2, 3)])
async def test_a_job_that_kills_its_workers_is_a_dead_letter(app: Any, clock: FakeClock, cap: int, runs: int) -> None:
    ran: list[int] = []

    @flow("poison", retry=9)
    async def work(ctx: Any) -> None:
        ran.append(ctx.attempt)

    async with app(work, clock=clock, max_crashes=cap) as a:
        run = await a.start("poison")
        for n in range(runs):
            await die_with(a, "default", is_alone=n == cap)
            a.advance_clock("31s")
        async with a.workers.background():
            assert await a.wait_for_end(run) == "failed"
        assert ran == [], "it is not tried once more"
        (letter,) = await a.list_dead_letters()
        assert letter.error["code"] == "worker_lost"
        (failed,) = await a.events_of(run, "step.failed")
        assert failed.data["code"] == "worker_lost"
        row = await a.jobs.get(step_job_id(run, "work", 1))
        view = (await a.runs.get(run)).steps["work"]
        assert {row.attempt, letter.attempts_made, failed.meta["attempt"], view.attempt} == {runs}


async def test_a_job_whose_workers_died_while_it_had_neighbours_is_tried_alone(app: Any, clock: FakeClock) -> None:
    @flow("innocent")
    async def work(ctx: Any) -> int:
        return ctx.attempt

    async with app(work, clock=clock, max_crashes=1) as a:
        run = await a.start("innocent")
        for _ in range(5):
            await die_with(a, "default")
            a.advance_clock("31s")
        async with a.workers.background():
            assert await a.result(run, timeout=20) == 6
        assert await a.list_dead_letters() == []


async def test_a_suspect_that_is_released_without_running_is_no_attempt(app: Any, clock: FakeClock) -> None:
    ran: list[tuple[int, int]] = []

    @job(queue="q")
    async def work(n: int, ctx: Any) -> int:
        ran.append((n, ctx.attempt))
        await asyncio.sleep(0.05)
        return ctx.attempt

    async with app(work, clock=clock, max_crashes=1) as a:
        ids = [await a.enqueue("q", n) for n in range(3)]
        for _ in ids:
            await die_with(a, "q")
        a.advance_clock("31s")
        async with a.workers.background():
            assert [await a.jobs.result(id, timeout=20) for id in ids] == [2, 2, 2]
        assert sorted(ran) == [(0, 2), (1, 2), (2, 2)]
        assert [(await a.jobs.get(id)).attempt for id in ids] == [2, 2, 2]
        events = await a.job_events("q", "job.active", "job.returned", "job.completed")
        released = [event for event in events if event.kind == "job.returned"]
        assert released, "one job runs alone, the others go back"
        assert {event.meta["attempt"] for event in released} == {1}
        assert {event.meta["attempt"] for event in events if event.kind == "job.completed"} == {2}
        assert sum(event.kind == "job.active" for event in events) == 3 + len(released) + 3


# Stopping


@pytest.mark.spec("002-8.10", "000-12.1")
async def test_a_stopping_worker_lets_handlers_finish(app: Any) -> None:
    release = asyncio.Event()

    @flow("held")
    async def held() -> str:
        await release.wait()
        return "finished"

    async with app(held) as a:
        run = await a.start("held")
        async with a.workers.background():
            await a.wait_for_step(run, "held", "active")
            asyncio.get_running_loop().call_later(0.01, release.set)
        assert (await a.store.run(run)).status == "completed"


@pytest.mark.parametrize("style", ["async", "sync"])
async def test_a_stopping_worker_releases_jobs_that_do_not_finish(app: Any, style: str) -> None:
    started = threading.Event()

    @flow("endless", retry=1)
    async def endless(ctx: Any) -> int:
        ctx.log("so far")
        started.set()
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return ctx.attempt

    @flow("endless", retry=1)
    def spinning(ctx: Any) -> int:
        ctx.log("so far")
        started.set()
        while ctx.attempt == 1:
            sum(range(100))
        return ctx.attempt

    work = endless if style == "async" else spinning
    async with app(work, grace=0) as a:
        run = await a.start("endless")
        async with a.workers.background():
            await until(started.is_set)
        row = await a.jobs.get(step_job_id(run, work.__name__, 1))
        assert (row.state.value, row.failures, row.crashes) == ("waiting", 0, 0)
        assert [e.data["msg"] for e in await a.events_of(run, "log")] == ["so far"], "its log is kept"
        async with a.workers.background():
            assert await a.result(run, timeout=20) == 2
        assert await a.events_of(run, "step.failed") == []


async def test_another_worker_claims_a_released_job(shared: Any) -> None:
    running = asyncio.Event()

    @job(queue="q")
    async def first_never_ends(ctx: Any) -> int:
        if ctx.attempt == 1:
            running.set()
            await asyncio.Event().wait()
        return ctx.attempt

    async with shared(first_never_ends, grace=0) as one, shared(first_never_ends) as two:
        id = await one.enqueue("q")
        async with one.workers.background():
            await running.wait()  # an attempt whose handler has not started is released uncounted
        async with two.workers.background():
            assert await two.jobs.result(id, timeout=20) == 2


async def test_a_cancelled_worker_stops_gracefully(app: Any) -> None:
    @flow("endless")
    async def endless() -> None:
        await asyncio.Event().wait()

    async with app(endless, grace=0) as a:
        run = await a.start("endless")
        task = asyncio.create_task(a.workers.run())
        await a.wait_for_step(run, "endless", "active")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await a.jobs.get(step_job_id(run, "endless", 1))).state.value == "waiting"


async def test_stop_worker_ends_run_worker(app: Any) -> None:
    @job(queue="q")
    async def work() -> None: ...

    async with app(work) as a:
        task = asyncio.create_task(a.workers.run(["q"], concurrency=2, name="mine"))
        id = await a.enqueue("q")
        await a.jobs.result(id, timeout=20)
        assert (await a.job_events("q", "job.active"))[0].meta["worker"] == "mine"
        a.workers.stop()
        await task
        a.workers.stop()


async def test_closing_the_app_stops_its_worker(app: Any) -> None:
    @job(queue="q")
    async def work() -> None: ...

    async with app(work) as a:
        task = asyncio.create_task(a.workers.run())
        await a.jobs.result(await a.enqueue("q"), timeout=20)
    assert task.done()


async def test_an_app_runs_one_worker_at_a_time(memory: Any) -> None:
    @job(queue="q")
    async def work() -> str:
        return "done"

    entered = False
    async with memory(work) as a, a.workers.background():
        with pytest.raises(ConfigError, match="already runs a worker"):
            async with a.workers.background():
                entered = True
        assert not entered
        assert await a.jobs.result(await a.enqueue("q"), timeout=20) == "done", "the first one goes on"


async def test_an_unknown_queue_is_refused_before_the_worker_starts(memory: Any) -> None:
    @job(queue="mail")
    async def work() -> None: ...

    entered = False
    async with memory(work) as a:
        with pytest.raises(UnknownQueue, match="known queues: mail"):
            async with a.workers.background(queues=["male"]):
                entered = True
        assert not entered, "waiting for that worker inside would never end"
    with pytest.raises(UnknownQueue):
        async with memory(work, queues="male") as a:
            await a.workers.run()


async def test_a_worker_of_some_queues_ignores_the_others(app: Any) -> None:
    @job(queue="mine")
    async def mine() -> None: ...

    @job(queue="theirs")
    async def theirs() -> None: ...

    async with app(mine, theirs, queues="mine") as a, a.workers.background():
        left = await a.enqueue("theirs")
        await a.jobs.result(await a.enqueue("mine"), timeout=20)
        assert (await a.jobs.get(left)).state.value == "waiting"


# Several


@pytest.mark.parametrize("concurrency", [1, 20])
async def test_the_commit_of_a_step_claims_the_next_step(app: Any, concurrency: int) -> None:
    @flow("three", emits=["first.done"])
    async def first(ctx: Any) -> None:
        ctx.emit("first.done")

    @step(on="first.done", emits=["second.done"])
    async def second(ctx: Any) -> None:
        ctx.emit("second.done")

    @step(on="second.done")
    async def third() -> int:
        return 3

    async with app(first, second, third, concurrency=concurrency) as a, a.workers.background():
        assert await a.run_for_result("three") == 3
        polls = []
        claim = a.store.claim
        a.store.claim = lambda ask: polls.append(ask) or claim(ask)
        for _ in range(20):
            assert await a.run_for_result("three") == 3
    # Other signals may cause a poll, but not for two of three steps.
    assert len(polls) < 40, f"{len(polls)} polls besides 60 commits"


@pytest.mark.spec("002-7.4")
async def test_two_workers_share_the_work(shared: Any) -> None:
    doors = asyncio.Event()
    inside: list[str] = []

    @job(queue="q")
    async def work(ctx: Any) -> None:
        inside.append(ctx.job_id)
        await doors.wait()

    async with shared(work, concurrency=5) as one, shared(work, concurrency=5) as two:
        async with one.workers.background(name="one"), two.workers.background(name="two"):
            ids = await one.jobs.enqueue_many("q", range(40))
            await until(lambda: len(inside) == 10)
            doors.set()
            for id in ids:
                await one.wait_for_state(id, "completed")
        assert sorted(inside) == sorted(ids), "each once"
        by = [e.meta["worker"] for e in await one.job_events("q", "job.active")]
        assert min(by.count("one"), by.count("two")) >= 5


async def test_two_workers_on_one_run_do_not_conflict(shared: Any) -> None:
    @flow("fan", emits=["item"])
    async def begin(ctx: Any) -> None:
        for i in range(100):
            ctx.emit("item", i)

    @step(on="item", mode="each", emits=["item.done"])
    async def work(input: int, ctx: Any) -> int:
        ctx.emit("item.done")
        return input

    @step(on="item.done")
    async def first_done() -> str:
        return "once"

    async with (
        shared(begin, work, first_done, concurrency=20) as one,
        shared(begin, work, first_done, concurrency=20) as two,
    ):
        async with one.workers.background(), two.workers.background():
            run = await one.start("fan")
            assert await two.result(run, timeout=30) == "once"
        events = await one.stream(run)
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
        ended = [(e.step, (e.meta or {}).get("n", 1)) for e in events if e.kind == "step.completed"]
        assert len(ended) == len(set(ended)) == 102
        assert [e.kind for e in events].count("flow.completed") == 1


async def test_another_process_wakes_this_one(shared: Any, shared_url: str) -> None:
    """Polling is off in these tests: without a wake-up the job would never run."""

    @job(queue="from-afar")
    async def work(input: Any) -> Any:
        return input

    script = f"""
    import asyncio
    from penstock import App

    async def main():
        async with App({shared_url!r}, handlers=[]) as app:
            await app.enqueue("from-afar", {{"hello": "there"}}, key="sent-from-afar")
            print(await app.jobs.result("sent-from-afar", timeout=20))

    asyncio.run(main())
    """
    async with shared(work) as a, a.workers.background():
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", textwrap.dedent(script), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await child.communicate()
        assert out.decode().strip() == "{'hello': 'there'}", err.decode()


async def test_close_returns_after_a_worker_was_cancelled_while_it_stopped(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = asyncio.Event()

    async def remove_worker(_id: str) -> None:
        stopping.set()
        await asyncio.Event().wait()

    @job(queue="q")
    async def work() -> None: ...

    async with app(work) as a:
        monkeypatch.setattr(a.store, "remove_worker", remove_worker)
        worker = asyncio.create_task(a.workers.run())
        await a.jobs.result(await a.enqueue("q"), timeout=20)
        worker.cancel()
        await stopping.wait()
        worker.cancel()
        await asyncio.wait([worker])
        await asyncio.wait_for(a.workers.close(), 20)
