"""Waiting for a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Context, SyncContext, flow

HOUR = 3_600_000


@pytest.mark.spec("003-7.1", "003-7.10")
@pytest.mark.parametrize("span", ["1h", 3600, timedelta(hours=1)], ids=str)
async def test_wait_for_a_duration(kit: Any, span: Any) -> None:
    @flow("nap", emits=[])
    async def nap(order: Any, ctx: Context) -> str:
        await ctx.wait.time(span)
        return "awake"

    async with kit(nap) as app:
        start = app.time.now_ms()
        run = await app.start(nap, None)
        await app.advance("59m")
        assert (await app.runs.get(run)).steps["nap"].status == "waiting"
        assert (await app.finish(run)).result == "awake"
        assert app.time.now_ms() == start + HOUR
        kinds = [event["kind"] for event in await app.history(run)]
        assert kinds[2:6] == ["step.await.time", "step.started", "step.resumed", "step.completed"]


@pytest.mark.spec("003-7.1")
async def test_wait_for_a_future_and_a_past_time(kit: Any) -> None:
    @flow("party", emits=[])
    async def party(order: Any, ctx: Context) -> int:
        await ctx.wait.time(datetime(2000, 1, 1, tzinfo=UTC))
        await ctx.wait.time(datetime(2030, 1, 1, tzinfo=UTC))
        return ctx.attempt

    async with kit(party) as app:
        view = await app.run_flow(party, None)
        assert view.result == 1
        assert app.time.now_ms() == datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1000


async def test_waits_in_a_loop_and_after_it(kit: Any) -> None:
    woken: list[int] = []

    @flow("naps", emits=[])
    def naps(order: Any, ctx: SyncContext) -> int:
        for n in range(3):
            ctx.wait.time("1d")
            ctx.run("woken", woken.append, n)
        ctx.wait.time("1d")
        return ctx.attempt

    async with kit(naps) as app:
        start = app.time.now_ms()
        assert (await app.run_flow(naps, None)).result == 1
        assert app.time.now_ms() == start + 4 * 24 * HOUR
    assert woken == [0, 1, 2]


@pytest.mark.spec("003-7.8")
async def test_a_waiting_step_holds_no_slot(kit: Any) -> None:
    @flow("nap", emits=[], concurrency=1)
    async def nap(order: Any, ctx: Context) -> None:
        await ctx.wait.time("1h")

    async with kit(nap, concurrency=1) as app:
        start = app.time.now_ms()
        runs = [await app.start(nap, None) for _ in range(5)]
        for run in runs:
            assert (await app.finish(run)).status == "completed"
        assert app.time.now_ms() == start + HOUR


async def test_a_due_step_of_a_paused_queue_stays_suspended(kit: Any) -> None:
    @flow("nap", emits=[], queue="beds")
    async def nap(order: Any, ctx: Context) -> str:
        await ctx.wait.time("1h")
        return "awake"

    async with kit(nap) as app:
        run = await app.start(nap, None)
        await app.settle()
        await app.queues.pause("beds")
        await app.advance("2h")
        assert (await app.runs.get(run)).steps["nap"].status == "waiting"
        await app.queues.resume("beds")
        assert (await app.finish(run)).result == "awake"
