"""Bugs of waits that the suites or reviews found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faultkit.backends import Backend

from penstock import App, Permanent, flow, step
from penstock.core.errors import AwaitTimeout, TriggerCancelled
from penstock.ports.unit import DELIVERIES, ClaimRequest, QueueDemand
from penstock.testing import FakeClock, until

HOUR = 3_600_000


async def _wait_for_waits(app: App, count: int = 1) -> None:
    async def has_waits() -> bool:
        return len(await app.store.waits_by_time(limit=count)) >= count

    await until(has_waits)


async def _move(app: App, clock: FakeClock, ms: int) -> None:
    clock.set_ms(clock.now_ms() + ms)
    app.store.signals.notify_all()


async def test_a_cancelled_wait_does_not_expire(backend: Backend, tmp_path: Path) -> None:
    """Its step ran again without end: it tried to expire a wait that was cancelled."""
    clock = FakeClock()

    @flow("pick", emits=[])
    async def pick(ctx: Any) -> str:
        calls = {"paid": ctx.wait.event("paid", timeout="2s"), "slow": ctx.wait.time("1s")}
        which, _ = await ctx.first(calls)
        await ctx.wait.time("1h", name="longer")
        return str(which)

    async with App(backend.url(tmp_path), handlers=[pick], clock=clock) as app, app.workers.background():
        run = await app.start("pick")
        await _wait_for_waits(app, 2)
        await _move(app, clock, 1000)
        await until(lambda: _waits_for(app, run, "longer#1"))
        await _move(app, clock, HOUR)
        assert await app.result(run, timeout="60s") == "slow"
        started = [e for e in await app.events.read_all(f"nq:flow:{run}") if e.kind == "step.started"]
        assert len(started) == 3


async def _waits_for(app: App, run: str, wait: str) -> bool:
    return any((e.data or {}).get("wait") == wait for e in await app.events.read_all(f"nq:flow:{run}"))


async def test_a_redriven_step_finds_its_trigger_expired(backend: Backend, tmp_path: Path) -> None:
    """The end of the run had cancelled its wait, so expiring it was refused again and again."""
    clock = FakeClock()

    @flow("ask", emits=[])
    async def ask(ctx: Any) -> str:
        trigger = await ctx.wait.trigger("approval", timeout="1s")
        if "redrive" not in ctx.job_id:
            raise Permanent("not today")
        try:
            await trigger.wait()
        except AwaitTimeout:
            return "late"
        return "fired"

    async with App(backend.url(tmp_path), handlers=[ask], clock=clock) as app, app.workers.background():
        run = await app.start("ask", key="ask-1")
        assert (await app.runs.wait(run, timeout="60s")).status == "failed"
        await _move(app, clock, HOUR)
        await app.dead_letters.redrive("ask-1.ask.1")
        assert await app.result(run, timeout="60s") == "late"


async def test_an_event_is_not_lost_when_the_clock_goes_back(backend: Backend, tmp_path: Path) -> None:
    """An event with a time before the start of the run was taken for an older one."""
    clock = FakeClock()

    @flow("order", emits=[])
    async def order(x: Any, ctx: Any) -> Any:
        early = (await ctx.wait.event("paid", match={"order": x}, name="one")).data["n"]
        return [early, (await ctx.wait.event("paid", match={"order": x}, name="other")).data["n"]]

    async with App(backend.url(tmp_path), handlers=[order], clock=clock) as app:
        await app.emit("paid", {"order": 7, "n": "before"})
        run = await app.start("order", 7)
        await _move(app, clock, -HOUR)
        await app.emit("paid", {"order": 7, "n": "while no worker runs"})
        async with app.workers.background():
            await until(lambda: _waits_for(app, run, "other#1"))
            await app.emit("paid", {"order": 7, "n": "while it waits"})
            assert await app.result(run, timeout="60s") == ["while no worker runs", "while it waits"]


async def test_a_dead_step_leaves_no_pending_wait(backend: Backend, tmp_path: Path) -> None:
    """Its trigger could be fired while the rest of the run continued, and resumed nothing."""
    tokens: list[str] = []

    @flow("ask", emits="ask.go", dead_letters=False)
    async def ask(ctx: Any) -> None:
        ctx.emit("ask.go", None)
        trigger = await ctx.wait.trigger("approval")
        await ctx.run("publish", lambda: tokens.append(trigger.token))
        await ctx.wait.event("go.on")
        raise Permanent("changed its mind")

    @step(on="ask.go", emits=[])
    async def other(ctx: Any) -> None:
        await ctx.wait.event("never")

    async with App(backend.url(tmp_path), handlers=[ask, other]) as app, app.workers.background():
        run = await app.start("ask")
        await _wait_for_waits(app, 3)
        await app.emit("go.on")
        await until(lambda: _kinds(app, run, "step.failed"))
        with pytest.raises(TriggerCancelled):
            await app.waits.fire(tokens[0])
        assert (await app.runs.get(run)).status == "waiting"


async def _kinds(app: App, run: str, kind: str) -> bool:
    return any(event.kind == kind for event in await app.events.read_all(f"nq:flow:{run}"))


async def test_the_result_of_a_step_that_waited_is_not_the_run_result_if_a_step_followed(
    backend: Backend, tmp_path: Path
) -> None:
    """The suspension lost the fact that another step had followed."""

    @flow("two", emits="two.go")
    async def first(ctx: Any) -> str:
        ctx.emit("two.go", None)
        await ctx.wait.event("go.on")
        return "first"

    @step(on="two.go", emits=[])
    async def second(ctx: Any) -> str:
        return "second"

    async with App(backend.url(tmp_path), handlers=[first, second]) as app, app.workers.background():
        run = await app.start("two")
        await _wait_for_waits(app)
        await app.emit("go.on")
        assert await app.result(run, timeout="60s") == "second"


async def test_an_event_is_delivered_after_many_worker_deaths(backend: Backend, tmp_path: Path) -> None:
    """A delivery whose workers had died too often failed for good, and its step stayed suspended."""

    @flow("order", emits=[])
    async def order(ctx: Any) -> str:
        await ctx.wait.event("paid")
        return "paid"

    clock = FakeClock()
    async with App(backend.url(tmp_path), handlers=[order], clock=clock, max_crashes=1) as app:
        async with app.workers.background():
            run = await app.start("order")
            await _wait_for_waits(app)
        await app.emit("paid")
        for _ in range(4):
            claims = await _claim_deliveries(app)
            assert len(claims) >= 1
            await _move(app, clock, 60_000)
        async with app.workers.background():
            assert await app.result(run, timeout="60s") == "paid"


async def _claim_deliveries(app: App) -> list[Any]:
    return (await app.store.claim(ClaimRequest((QueueDemand(DELIVERIES, 10),), 1000, "dies"))).claims
