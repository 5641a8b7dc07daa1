"""Waiting for a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Context, SyncContext, flow
from penstock.durable.wait_records import wait_id

HOUR = 3_600_000
KEYS = {"time": "time#1", "event": "alarm#1"}


@pytest.mark.parametrize("span", ["1h", 3600, timedelta(hours=1)], ids=str)
async def test_a_duration(kit: Any, span: Any) -> None:
    @flow("nap", emits=[])
    async def nap(order: Any, ctx: Context) -> str:
        await ctx.wait.time(span)
        return "awake"

    async with kit(nap) as app:
        start = app.time.now_ms()
        run = await app.start(nap, None)
        await app.advance("59m")
        assert (await app.run(run)).steps["nap"].status == "waiting"
        assert (await app.finish(run)).result == "awake"
        assert app.time.now_ms() == start + HOUR
        kinds = [event["kind"] for event in await app.history(run)]
        assert kinds[2:6] == ["step.await.time", "step.started", "step.resumed", "step.completed"]


async def test_a_moment_and_one_that_is_past(kit: Any) -> None:
    @flow("party", emits=[])
    async def party(order: Any, ctx: Context) -> int:
        await ctx.wait.time(datetime(2000, 1, 1, tzinfo=UTC))
        await ctx.wait.time(datetime(2030, 1, 1, tzinfo=UTC))
        return ctx.attempt

    async with kit(party) as app:
        view = await app.run_flow(party, None)
        assert view.result == 2
        assert app.time.now_ms() == datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1000


async def test_many_naps_in_a_loop_and_beside_it(kit: Any) -> None:
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
        assert (await app.run_flow(naps, None)).result == 5
        assert app.time.now_ms() == start + 4 * 24 * HOUR
    assert woken == [0, 1, 2]


async def test_a_sleeping_step_holds_no_slot(kit: Any) -> None:
    @flow("nap", emits=[], concurrency=1)
    async def nap(order: Any, ctx: Context) -> None:
        await ctx.wait.time("1h")

    async with kit(nap, concurrency=1) as app:
        start = app.time.now_ms()
        runs = [await app.start(nap, None) for _ in range(5)]
        for run in runs:
            assert (await app.finish(run)).status == "completed"
        assert app.time.now_ms() == start + HOUR


async def test_a_paused_queue_keeps_what_is_due(kit: Any) -> None:
    @flow("nap", emits=[], queue="beds")
    async def nap(order: Any, ctx: Context) -> str:
        await ctx.wait.time("1h")
        return "awake"

    async with kit(nap) as app:
        run = await app.start(nap, None)
        await app.settle()
        await app.queues.pause("beds")
        await app.advance("2h")
        assert (await app.run(run)).steps["nap"].status == "waiting"
        await app.queues.resume("beds")
        assert (await app.finish(run)).result == "awake"


async def test_a_gate_is_found_again_whatever_id_it_was_given(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that went to sleep before ids were recorded have gates with ids of another form."""
    before: dict[str, Any] = {}

    def open_as_before(gate: Any, due: int | None) -> None:
        gate._opened = {"at": gate._calls.now_ms, "due": due}
        gate._calls.keep(gate._call, gate._opened)

    @flow("nap", emits=[])
    async def nap(order: Any, ctx: Context) -> str:
        await ctx.wait.time("1h")
        return (await ctx.wait.event("alarm")).data  # type: ignore[no-any-return]

    async with kit(nap) as app:
        with monkeypatch.context() as patch:
            patch.setattr("penstock.durable.waits._Recorded._open", open_as_before)
            run = await app.start(nap, None)
            await app.settle()
            before["time"] = (await app.store.waits(run=run))[0].id
            await app.advance("1h")
            before["event"] = (await app.store.waits(run=run))[0].id
        await app.emit("alarm", "now")
        assert (await app.finish(run)).result == "now"
        assert before == {kind: wait_id(kind, f"{run}.nap.1", key) for kind, key in KEYS.items()}
        assert {(await app.store.wait_row(id)).state for id in before.values()} == {"resolved"}
