"""TestApp: runs that wait, with skipped time."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import AwaitTimeout, Context, flow, step
from penstock.core.errors import TriggerUsed, UnknownTrigger, WaitTimeout
from penstock.ports.unit import DELIVERIES
from penstock.testing import TestApp

HOUR_MS = 3_600_000


@flow("nap", emits=[])
async def nap(order: Any, ctx: Context) -> str:
    await ctx.wait.time("24h")
    return ctx.now().isoformat()


@flow("pay", emits=[])
async def pay(order: dict[str, Any], ctx: Context) -> Any:
    try:
        paid = await ctx.wait.event("payment.confirmed", match={"id": order["id"]}, timeout="24h")
    except AwaitTimeout:
        return "too late"
    return paid.data


@flow("ask", emits=["asked"])
async def ask(order: Any, ctx: Context) -> Any:
    t = await ctx.wait.trigger("approval", timeout="7d")
    ctx.emit("asked", {"url": t.url, "key": ctx.uuid(), "token": t.token, "trigger": t.id})
    return await t.wait()


async def test_a_day_is_skipped_and_resumes_a_suspended_step() -> None:
    async with TestApp(handlers=[nap]) as app:
        run = await app.start(nap, None)
        await app.advance("23h")
        assert (await app.runs.get(run)).steps["nap"].status == "waiting"
        assert [(wait.step, wait.kind, wait.name) for wait in await app.pending_waits(run)] == [("nap", "time", "time")]
        await app.advance("1h")
        view = await app.runs.get(run)
        assert (view.status, view.result) == ("completed", "2023-11-15T22:13:20+00:00")


async def test_finish_skips_to_the_end_of_a_wait() -> None:
    async with TestApp(handlers=[nap]) as app:
        start = app.time.now_ms()
        assert (await app.run_flow(nap, None)).status == "completed"
        assert app.time.now_ms() == start + 24 * HOUR_MS


async def test_a_timeout_comes_at_its_time() -> None:
    async with TestApp(handlers=[pay]) as app:
        run = await app.start(pay, {"id": 7})
        await app.advance("23h")
        [wait] = await app.pending_waits(run)
        assert (wait.step, wait.kind, wait.event, wait.match) == ("pay", "event", "payment.confirmed", {"id": 7})
        assert wait.until == "2023-11-15T22:13:20.000Z"
        await app.advance("1h")
        assert (await app.runs.get(run)).result == "too late"
        assert await app.pending_waits(run) == []


async def test_an_event_resolves_the_waits_that_match() -> None:
    async with TestApp(handlers=[pay]) as app:
        seven, eight = await app.start(pay, {"id": 7}), await app.start(pay, {"id": 8})
        assert len(await app.pending_waits()) == 2
        await app.emit("payment.confirmed", {"id": 8})
        assert (await app.finish(eight)).result == {"id": 8}
        assert len(await app.pending_waits(seven)) == 1
        assert (await app.finish(seven)).result == "too late"


async def test_settle_waits_for_deliveries() -> None:
    async with TestApp(handlers=[pay]) as app:
        runs = [await app.start(pay, {"id": n}) for n in range(20)]
        await app.settle()
        for n in range(20):
            await app.emit("payment.confirmed", {"id": n})
        await app.settle()
        assert {(await app.runs.get(run)).status for run in runs} == {"completed"}
        # Which of the two is faster is chance, but the queue of deliveries must be checked.
        assert DELIVERIES in {row.name for row in await app._auto_clock._rows()}


async def test_a_trigger_is_fired_by_its_name() -> None:
    async with TestApp(handlers=[ask]) as app:
        run = await app.start(ask, None)
        assert await app.fire("approval", {"ok": True}) == run
        assert (await app.finish(run)).result == {"ok": True}
        one, other = await app.start(ask, None), await app.start(ask, None)
        with pytest.raises(AssertionError, match=r"2 runs wait for the trigger 'approval'; choose one with run="):
            await app.fire("approval", 1)
        await app.fire("approval", 2, run=other)
        assert (await app.finish(other)).result == 2
        with pytest.raises(AssertionError, match=r"no run waits for the trigger 'aproval'; step 'ask' of run"):
            await app.fire("aproval", 1, run=one)


async def test_a_trigger_is_fired_by_its_token_or_url() -> None:
    async with TestApp(handlers=[ask]) as app:
        run = await app.start(ask, None)
        await app.settle()
        [asked] = await app.emitted(run, "asked")
        await app.fire(asked["url"], 1)
        assert (await app.finish(run)).result == 1
        with pytest.raises(TriggerUsed):
            await app.fire(asked["token"], 2)
        with pytest.raises(UnknownTrigger):
            await app.fire(f"{asked['trigger']}.{'x' * 43}", 2)


async def test_a_run_that_waits_without_end_is_an_error_that_names_the_wait() -> None:
    @flow("stuck", emits=[])
    async def stuck(order: Any, ctx: Context) -> None:
        await ctx.wait.event("never.comes", match={"id": 1})

    async with TestApp(handlers=[stuck]) as app:
        with pytest.raises(AssertionError, match=r"waits for the event 'never.comes' with .*await app.emit\("):
            await app.run_flow(stuck, None)


async def test_the_first_event_starts_a_flow() -> None:
    @flow("greet", emits=[], start_on={"kind": "user.joined", "when": {"plan": "paid"}})
    async def greet(user: dict[str, Any], ctx: Context) -> str:
        return f"welcome {user['name']}"

    async with TestApp(handlers=[greet]) as app:
        await app.emit("user.joined", {"name": "Ada", "plan": "paid"})
        await app.emit("user.joined", {"name": "Bob", "plan": "free"})
        await app.settle()
        [row] = await app.runs.list(flow="greet")
        assert await app.result(row.id) == "welcome Ada"


async def test_schedules_fire_between_waits() -> None:
    ticks: list[int] = []

    @flow("tick", emits=[])
    async def tick(ctx: Context) -> None:
        ticks.append(app.time.now_ms())

    async with TestApp(handlers=[nap, tick]) as app:
        await app.schedules.add("hourly", flow=tick, every="12h")
        await app.run_flow(nap, None)
        await app.settle()
        assert len(ticks) >= 2


async def test_a_crash_while_waiting_and_after() -> None:
    async with TestApp(handlers=[nap]) as app:
        app.crash("nap", attempt=2)
        run = await app.run_flow(nap, None)
        assert (run.status, run.steps["nap"].attempt) == ("completed", 2)


async def test_a_history_is_the_same_every_time(tmp_path: Path) -> None:
    @step(on="asked", emits=[])
    async def wait_a_while(asked: Any, ctx: Context) -> str:
        await ctx.wait.time("1h")
        return "done"

    async def history() -> list[dict[str, Any]]:
        async with TestApp(handlers=[ask, wait_a_while]) as app:
            run = await app.start(ask, None)
            await app.advance("2h")
            await app.fire("approval", {"ok": True})
            await app.finish(run)
            await app.assert_history(run, tmp_path / "asked.json")
            return await app.history(run)

    first = await history()
    assert await history() == first
    [asked] = [event["data"] for event in first if event["kind"] == "asked"]
    assert asked == {
        "url": "/api/triggers/TOKEN", "key": "UUID", "token": "TOKEN", "trigger": "WAIT",
    }  # fmt: skip


async def test_time_until_a_moment() -> None:
    @flow("new-year", emits=[])
    async def new_year(ctx: Context) -> str:
        await ctx.wait.time(datetime(2030, 1, 1, tzinfo=UTC))
        return ctx.now().isoformat()

    async with TestApp(handlers=[new_year]) as app:
        assert (await app.run_flow(new_year)).result == "2030-01-01T00:00:00+00:00"


async def test_a_timeout_names_the_wait() -> None:
    @flow("slow", emits=[])
    async def slow(input: Any, ctx: Context) -> None:
        await (ctx.wait.time("2h") if input == "sleep" else ctx.wait.event("paid", match={"n": 7}, timeout="2h"))

    async with TestApp(handlers=[slow]) as app:
        run = await app.start(slow, "wait")
        with pytest.raises(
            WaitTimeout, match=rf"step 'slow' of run {run} waits for the event 'paid' with .* until 20"
        ) as it:
            await app.result(run, timeout="1h")
        assert "resolve it with await app.emit('paid', …)" in str(it.value)
        await app.runs.cancel(run)
        run = await app.start(slow, "sleep")
        with pytest.raises(WaitTimeout, match=rf"step 'slow' of run {run} sleeps until 20"):
            await app.result(run, timeout="1h")


@flow("sleep")
async def sleep(days: int, ctx: Context) -> str:
    await ctx.wait.time(f"{days}d")
    return f"slept {days} days"


@flow("sleeps")
async def sleeps(ctx: Context) -> list[str]:
    first = await ctx.call(sleep, 3, timeout="10d")
    return [first, *await ctx.call_many(sleep, [1, 2])]


async def test_time_is_skipped_through_children() -> None:
    async with TestApp(handlers=[sleep, sleeps]) as app:
        run = await app.start("sleeps")
        assert await app.result(run) == ["slept 3 days", "slept 1 days", "slept 2 days"]
