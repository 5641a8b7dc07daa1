"""Pause a run: running attempts may end, events are kept, and nothing starts until it is resumed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import flow, step
from penstock.core.errors import UnknownRun
from penstock.core.ids import step_job_id
from penstock.testing.clock import FakeClock


@flow("two", emits=["go"])
async def begin(ctx: Any) -> None:
    ctx.emit("go")


@step(on="go")
async def end() -> str:
    return "ended"


@flow("waits")
async def waits(ctx: Any) -> Any:
    event = await ctx.wait.event("paid", match={"order": 7}, timeout="1h")
    return event.data


async def test_a_paused_run_starts_nothing_until_it_is_resumed(app: Any) -> None:
    async with app(begin, end) as a:
        run = await a.start("two")
        assert await a.runs.pause(run, "stop the press")
        async with a.workers.background():
            await a.wait_for_step(run, "begin", "held")
            other = await a.start("two")
            assert await a.wait_for_end(other) == "completed", "other runs continue"
            assert await a.kinds(run) == ["flow.started", "flow.paused"]
            assert await a.runs.resume(run, "continue")
            assert await a.result(run, timeout=20) == "ended"
        reasons = [e.data for e in await a.stream(run) if e.kind in ("flow.paused", "flow.resumed")]
        assert reasons == [{"reason": "stop the press"}, {"reason": "continue", "status": "running"}]


async def test_pausing_and_resuming_twice_changes_nothing(app: Any) -> None:
    async with app(begin, end) as a:
        run = await a.start("two")
        assert not await a.runs.resume(run)
        assert await a.runs.pause(run)
        assert not await a.runs.pause(run)
        assert await a.runs.resume(run)
        assert not await a.runs.resume(run)
        assert await a.kinds(run) == ["flow.started", "flow.paused", "flow.resumed"]
        async with a.workers.background():
            assert await a.wait_for_end(run) == "completed"
        before = await a.stream(run)
        assert not await a.runs.pause(run), "it has ended"
        assert not await a.runs.resume(run)
        assert await a.stream(run) == before
        with pytest.raises(UnknownRun):
            await a.runs.pause("missing")


async def test_a_paused_run_is_listed_and_shown_as_paused(app: Any) -> None:
    async with app(begin, end) as a:
        run = await a.start("two")
        await a.runs.pause(run, "for lunch")
        assert [row.id for row in await a.runs.list(status="paused")] == [run]
        assert await a.runs.list(status="running") == []
        view = await a.runs.get(run)
        assert (view.status, view.reason) == ("paused", "for lunch")
        await a.runs.resume(run)
        assert [row.id for row in await a.runs.list(status="running")] == [run]
        view = await a.runs.get(run)
        assert (view.status, view.reason) == ("running", None)


async def test_a_running_attempt_ends_and_the_steps_it_starts_are_held(app: Any) -> None:
    release = asyncio.Event()

    @flow("slow", emits=["go"])
    async def slow(ctx: Any) -> None:
        await release.wait()
        ctx.emit("go")

    async with app(slow, end) as a, a.workers.background():
        run = await a.start("slow")
        await a.wait_for_step(run, "slow", "active")
        await a.runs.pause(run)
        release.set()
        await a.wait_for_step(run, "slow", "completed")
        await a.wait_for_step(run, "end", "held")
        assert (await a.runs.get(run)).status == "paused"
        await a.runs.resume(run)
        assert await a.result(run, timeout=20) == "ended"


async def test_a_run_whose_last_step_ends_while_it_is_paused_ends(app: Any) -> None:
    release = asyncio.Event()

    @flow("last")
    async def last() -> str:
        await release.wait()
        return "done"

    async with app(last) as a, a.workers.background():
        run = await a.start("last")
        await a.wait_for_step(run, "last", "active")
        await a.runs.pause(run)
        release.set()
        assert await a.wait_for_end(run) == "completed"
        assert (await a.runs.get(run)).status == "completed"


async def test_a_failed_run_that_was_paused_can_be_retried(app: Any) -> None:
    release, broken = asyncio.Event(), True

    @flow("fragile")
    async def fragile() -> str:
        await release.wait()
        if broken:
            raise ValueError("broken")
        return "whole"

    async with app(fragile) as a, a.workers.background():
        run = await a.start("fragile")
        await a.wait_for_step(run, "fragile", "active")
        await a.runs.pause(run)
        release.set()
        assert await a.wait_for_end(run) == "failed"
        broken = False
        assert (await a.dead_letters.redrive(step_job_id(run, "fragile", 1))).sent
        assert await a.result(run, timeout=20) == "whole", "its pause has ended with it"


async def test_an_event_that_comes_while_a_run_is_paused_takes_effect_when_it_is_resumed(app: Any) -> None:
    async with app(waits) as a, a.workers.background():
        run = await a.start("waits")
        await a.wait_for_step(run, "waits", "delayed")
        await a.runs.pause(run)
        await a.emit("paid", {"order": 7})
        await a.wait_for_step(run, "waits", "held")
        assert len(await a.events_of(run, "step.started")) == 1, "the handler is not run meanwhile"
        await a.runs.resume(run)
        assert await a.result(run, timeout=20) == {"order": 7}


async def test_a_timeout_that_passes_while_a_run_is_paused_counts_when_it_is_resumed(
    app: Any, clock: FakeClock
) -> None:
    async with app(waits, clock=clock) as a, a.workers.background():
        run = await a.start("waits")
        await a.wait_for_step(run, "waits", "delayed")
        await a.runs.pause(run)
        a.advance_clock("2h")
        await a.wait_for_step(run, "waits", "held")
        await a.runs.resume(run)
        assert await a.wait_for_end(run) == "failed"
        assert (await a.runs.get(run)).steps["waits"].code == "AWAIT_TIMEOUT"


async def test_a_paused_run_is_cancelled(app: Any) -> None:
    async with app(begin, end) as a, a.workers.background():
        run = await a.start("two", delay="1h")
        await a.runs.pause(run)
        assert await a.runs.cancel(run, "enough")
        row = await a.store.run(run)
        assert (row.status, row.closed) == ("cancelled", True)
        assert (await a.store.job(step_job_id(run, "begin", 1))).state.value == "cancelled"
        assert not await a.runs.resume(run)
        assert (await a.kinds(run))[-1] == "flow.cancelled"


async def test_compensation_of_a_paused_run_waits_for_its_resume(app: Any) -> None:
    release = asyncio.Event()

    @flow("book", emits=["booked"], compensation="unbook")
    async def book(ctx: Any) -> None:
        ctx.emit("booked")

    @step(on="booked", flow="book")
    async def pay() -> None:
        await release.wait()
        raise ValueError("no money")

    @step(name="unbook", flow="book")
    async def unbook() -> None: ...

    async with app(book, pay, unbook) as a, a.workers.background():
        run = await a.start("book")
        await a.wait_for_step(run, "pay", "active")
        await a.runs.pause(run)
        release.set()
        await a.wait_for_step(run, "unbook", "held")
        assert (await a.runs.get(run)).status == "paused"
        assert [row.id for row in await a.runs.list(status="paused")] == [run]
        await a.runs.resume(run)
        assert (await a.events_of(run, "flow.resumed"))[0].data["status"] == "compensating"
        assert await a.wait_for_end(run) == "compensated"


async def test_concurrent_pauses_are_one(app: Any) -> None:
    async with app(begin, end) as a:
        run = await a.start("two")
        assert sum(await asyncio.gather(*(a.runs.pause(run) for _ in range(20)))) == 1
        assert sum(await asyncio.gather(*(a.runs.resume(run) for _ in range(20)))) == 1
        assert await a.kinds(run) == ["flow.started", "flow.paused", "flow.resumed"]
