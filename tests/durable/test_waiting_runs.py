"""Runs that wait: cancel, retry, fan-out and compensation."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from penstock import Context, flow, job, step
from penstock.app.run_actions import retry_run
from penstock.cli.run_view import render_text
from penstock.cli.timeline import Timeline
from penstock.core.errors import TriggerCancelled


@flow("nap", emits=[])
async def nap(order: Any, ctx: Context) -> None:
    await ctx.first({"paid": ctx.wait.event("paid"), "late": ctx.wait.time("1d")})


async def test_a_waiting_run_is_cancelled(kit: Any) -> None:
    async with kit(nap) as app:
        run = await app.start(nap, None)
        await app.settle()
        assert await app.runs.cancel(run, "enough")
        assert (await app.runs.get(run)).status == "cancelled"
        before = await app.history(run)
        await app.emit("paid")
        await app.advance("2d")
        assert await app.history(run) == before
        assert await app.store.waits(run=run) == []
        assert (await app.store.job(f"{run}.nap.1")).state == "cancelled"


async def test_a_completed_run_cancels_its_waits(kit: Any) -> None:
    tokens: list[str] = []

    @flow("quick", emits=[])
    async def quick(order: Any, ctx: Context) -> None:
        tokens.append((await ctx.wait.trigger("unused")).token)
        await ctx.first({"late": ctx.wait.time("1h"), "paid": ctx.wait.event("paid")})

    async with kit(quick) as app:
        run = await app.start(quick, None)
        assert (await app.finish(run)).status == "completed"
        assert await app.store.waits(run=run) == []
        with pytest.raises(TriggerCancelled):
            await app.fire(tokens[0])


async def test_a_retried_run_keeps_its_memos_and_registers_its_waits_again(kit: Any) -> None:
    made: list[str] = []
    tokens: list[str] = []
    broken = [True]

    @flow("fragile", emits=["notified"])
    async def fragile(order: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("approval")
        await ctx.run("charge", made.append, "charged")
        await ctx.run("tell", tokens.append, trigger.token)
        ctx.emit("notified")
        await ctx.wait.time("1h")
        if broken[0]:
            raise RuntimeError("no")
        return await trigger.wait()

    async with kit(fragile) as app:
        run = await app.start(fragile, None)
        assert (await app.finish(run)).status == "failed"
        with pytest.raises(TriggerCancelled):
            await app.fire(tokens[0])
        broken[0] = False
        assert (await retry_run(app, run)).sent
        await app.settle()
        await app.fire(tokens[0], "late yes")
        assert (await app.finish(run)).result == "late yes"
        assert made == ["charged"]
        assert await app.emitted(run) == [("notified", None)]


async def test_every_instance_of_a_fan_out_has_its_own_wait(kit: Any) -> None:
    @flow("fan", emits=["item"])
    async def begin(order: Any, ctx: Context) -> None:
        for n in range(5):
            ctx.emit("item", {"n": n})

    @step(on="item", mode="each", emits=[])
    async def work(item: Any, ctx: Context) -> Any:
        event = await ctx.wait.event("done", match={"n": item["n"]})
        await ctx.wait.time("1h")
        return event.data["by"]

    async with kit(begin, work) as app:
        run = await app.start("fan", None)
        await app.settle()
        for n in (3, 1, 4, 0, 2):
            await app.emit("done", {"n": n, "by": f"w{n}"})
        view = await app.finish(run)
        assert view.status == "completed"
        done = {name: step.result for name, step in view.steps.items() if name.startswith("work")}
        assert sorted(done.values()) == [f"w{n}" for n in range(5)]


async def test_a_compensation_may_wait(kit: Any) -> None:
    @flow("trip", emits=["booked"], compensation="unbook")
    async def book(order: Any, ctx: Context) -> str:
        ctx.emit("booked")
        return "seat 7"

    @step(on="booked", emits=[])
    async def pay(order: Any) -> None:
        raise RuntimeError("no money")

    @step(on="never", emits=[])
    async def unbook(undo: Any, ctx: Context) -> Any:
        event = await ctx.wait.event("agreed", timeout="1d")
        return [undo["result"], event.data]

    async with kit(book, pay, unbook) as app:
        run = await app.start("trip", None)
        await app.settle()
        assert (await app.runs.get(run)).status == "compensating"
        await app.emit("agreed", "fine")
        view = await app.finish(run)
        assert (view.status, view.steps["unbook"].result) == ("compensated", ["seat 7", "fine"])


async def test_a_plain_job_cannot_wait_but_can_make_durable_calls(kit: Any) -> None:
    made: list[int] = []

    @job(queue="mail", retry=2)
    async def mail(payload: Any, ctx: Context) -> Any:
        await ctx.run("send", made.append, 1)
        if ctx.attempt == 1:
            raise RuntimeError("no")
        try:
            await ctx.wait.time("1h")
        except Exception as problem:
            return str(problem)

    async with kit(mail) as app:
        assert "is not part of a run and cannot wait" in await app.run_job("mail")
    assert made == [1]


async def test_a_resume_continues_its_attempt_in_every_view(app: Any) -> None:
    ran: list[int] = []

    @flow("ask", emits=[], retry={"attempts": 2, "backoff": {"type": "fixed", "delay": "1ms"}})
    async def ask(order: Any, ctx: Context) -> int:
        ran.append(ctx.attempt)
        await ctx.wait.event("answered")
        await ctx.wait.time("100ms")
        if ctx.attempt == 1 and order == "bad":
            raise ValueError("no")
        return ctx.attempt

    async with app(ask) as a, a.workers.background():
        for order, attempts in (("good", [1, 1, 1]), ("bad", [1, 1, 1, 2])):
            ran.clear()
            run = await a.start("ask", order)
            await a.wait_for_step(run, "ask", "suspended")
            await a.emit("answered")
            assert await a.result(run, timeout=20) == attempts[-1]
            assert ran == attempts
            assert [e.meta["attempt"] for e in await a.events_of(run, "step.started")] == attempts
            view = await a.runs.get(run)
            assert view.steps["ask"].attempt == (await a.jobs.get(f"{run}.ask.1")).attempt == attempts[-1]
            drawn = render_text(view, a.clock.now_ms()) + draw(Timeline(view, a.clock))
            assert ("attempt 2" in drawn, "×2" in drawn) == (order == "bad",) * 2


def draw(timeline: Timeline) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(timeline)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]
