"""`ctx.first` with functions among its branches: the first result wins and stays the winner."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from penstock import AwaitTimeout, Context, SyncContext, flow
from penstock.core.errors import CallFailed
from penstock.testing import TestApp, until


class EndlessFunction:
    """A function that runs until it is cancelled."""

    def __init__(self) -> None:
        self.calls = 0
        self.cancelled = 0

    async def __call__(self) -> None:
        self.calls += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.02)  # it has something to tidy up, which takes longer than a commit
            self.cancelled += 1
            raise


async def test_the_function_that_ends_first_wins_and_stays_the_winner(kit: Any) -> None:
    endless, calls = EndlessFunction(), []

    async def quick() -> str:
        calls.append(endless.calls)
        return "B"

    @flow("race", emits=[])
    async def race(order: Any, ctx: Context) -> Any:
        won = await ctx.first({"a": ctx.run("a", endless), "b": ctx.run("b", quick)})
        heard.append(endless.cancelled)
        await ctx.wait.time("1h")
        return won

    heard: list[int] = []
    async with kit(race) as app:
        assert (await app.run_flow(race, None)).result == ["b", "B"]
    assert calls == [1], "they run side by side, and once"
    assert heard == [1, 1], "it was cancelled, and had ended, before the handler went on"


async def test_a_time_wins_while_a_function_runs(kit: Any) -> None:
    endless = EndlessFunction()

    @flow("race", emits=[])
    async def race(order: Any, ctx: Context) -> Any:
        who, _ = await ctx.first({"work": ctx.run("work", endless), "late": ctx.wait.time("20ms")})
        await ctx.wait.time("1h", name="longer")
        return who

    async with kit(race) as app:
        assert (await app.run_flow(race, None)).result == "late"
    assert (endless.calls, endless.cancelled) == (1, 1)


async def test_an_event_timeout_expires_while_a_function_runs(kit: Any) -> None:
    endless = EndlessFunction()

    @flow("race", emits=[])
    async def race(order: Any, ctx: Context) -> Any:
        try:
            await ctx.first({"work": ctx.run("work", endless), "paid": ctx.wait.event("paid", timeout="20ms")})
        except AwaitTimeout:
            await ctx.wait.time("1h")
            return "timeout"

    async with kit(race) as app:
        assert (await app.run_flow(race, None)).result == "timeout"
    assert (endless.calls, endless.cancelled) == (1, 1)


async def test_a_def_handler_does_not_wait_for_the_losing_thread(kit: Any) -> None:
    release, threads = threading.Event(), []

    def slow() -> str:
        threads.append(threading.current_thread())
        release.wait(20)
        ended.set()
        return "too late"

    @flow("race", emits=[])
    def race(order: Any, ctx: SyncContext) -> Any:
        who, _ = ctx.first({"work": ctx.branch.run("work", slow), "late": ctx.branch.time("20ms")})
        which, value = ctx.first(
            {"slow": ctx.branch.run("slow", release.wait, 20), "quick": ctx.branch.run("quick", lambda: 2)},
            name="functions",
        )
        ctx.wait.time("1h", name="longer")
        return [who, which, value]

    ended = threading.Event()
    async with kit(race) as app:
        run = await app.start(race, None)
        await app.settle()
        assert not ended.is_set()
        release.set()
        assert await asyncio.to_thread(ended.wait, 20)
        assert (await app.finish(run)).result == ["late", "quick", 2]
    assert len(threads) == 1


@pytest.mark.parametrize("kind", ["event", "trigger"])
async def test_an_event_or_trigger_that_arrives_while_a_function_runs_wins(kit: Any, kind: str) -> None:
    calls = []

    @flow("race", emits=[])
    async def race(order: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("stop") if kind == "trigger" else None
        token = trigger.token if trigger is not None else ""

        async def work() -> str:
            calls.append(token)
            await (app.waits._triggers.fire(token, 7) if token else app.emit("stop", 7))
            await until(lambda: _has_no_pending_wait(app, ctx.run_id))
            return "done"

        stop = trigger.wait() if trigger is not None else ctx.wait.event("stop")
        who, value = await ctx.first({"work": ctx.run("work", work), "stop": stop})
        await ctx.wait.time("1h")
        return [who, value if trigger is not None else value.data]

    async with kit(race) as app:
        assert (await app.run_flow(race, None)).result == ["stop", 7]
    assert len(calls) == 1


async def _has_no_pending_wait(app: Any, run: str | None) -> bool:
    return await app.store.waits(run=run) == []


async def test_an_event_that_comes_before_a_time_wins(kit: Any) -> None:
    """The event comes first, but the worker sees it only after the time has passed."""

    async def work(app: Any, run: Any) -> None:
        await app.emit("stop", 7)
        await until(lambda: _has_no_pending_wait(app, run))
        app.time.advance("2h")

    @flow("race", emits=[])
    async def race(order: Any, ctx: Context) -> Any:
        calls = {
            "work": ctx.run("work", work, app, ctx.run_id),
            "late": ctx.wait.time("1h"),
            "stop": ctx.wait.event("stop"),
        }
        return (await ctx.first(calls))[0]

    async with kit(race) as app:
        assert (await app.run_flow(race, None)).result == "stop"


async def test_a_time_that_passed_before_the_function_ended_wins() -> None:
    """The function blocks the loop, so the time passes unnoticed."""

    @flow("race", emits=[])
    async def race(order: Any, ctx: Context) -> Any:
        work = ctx.run("work", lambda: app.time.advance("2h"))
        return (await ctx.first({"work": work, "late": ctx.wait.time("1h")}))[0]

    async with TestApp(handlers=[race]) as app:
        assert (await app.run_flow(race, None)).result == "late"


async def test_waits_that_lost_to_a_function_are_cancelled(kit: Any) -> None:
    @flow("race", emits=[])
    async def race(order: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("approval")
        late = {"late": ctx.wait.time("1h"), "paid": ctx.wait.event("paid"), "answered": trigger.wait()}
        who, value = await ctx.first({**late, "work": ctx.run("work", lambda: 5)})
        paid = await ctx.wait.event("paid")
        return [who, value, paid.data, await trigger.wait()]

    async with kit(race) as app:
        run = await app.start(race, None)
        assert sorted(wait.kind for wait in await app.pending_waits(run)) == ["event", "trigger"]
        await app.emit("paid", 1)
        await app.fire("approval", 7)
        assert (await app.finish(run)).result == ["work", 5, 1, 7]
        assert await app.store.waits(run=run) == []


async def test_a_function_that_fails_first() -> None:
    endless, tries = EndlessFunction(), []

    def fail() -> None:
        tries.append(1)
        raise ConnectionError("no")

    @flow("race", emits=[], retry=2)
    async def race(order: Any, ctx: Context) -> Any:
        retry = {"attempts": 2, "backoff": {"type": "fixed", "delayMs": 1}} if order else None
        try:
            await ctx.first({"a": ctx.run("a", endless), "b": ctx.run("b", fail, retry=retry)})
        except CallFailed as problem:
            await ctx.wait.time("1h")
            return str(problem)

    async with TestApp(handlers=[race]) as app:
        assert "ConnectionError: no" in (await app.run_flow(race, 1)).result  # recorded: the same at each run of it
        assert (endless.calls, endless.cancelled, len(tries)) == (1, 1, 2)
        assert (await app.run_flow(race, 0)).status == "failed"  # the step's own failure, with the step's retries
        assert (endless.calls, endless.cancelled, len(tries)) == (3, 3, 4)


async def test_a_crash_after_the_race(kit: Any) -> None:
    endless, calls = EndlessFunction(), []

    @flow("race", emits=[])
    async def race(order: Any, ctx: Context) -> Any:
        calls = {"late": ctx.wait.time("1ms"), "a": ctx.run("a", endless), "b": ctx.run("b", quick)}
        return (await ctx.first(calls))[0]

    async def quick() -> None:
        calls.append(1)

    async with kit(race) as app:
        app.crash("race", after=True)
        assert (await app.run_flow(race, None)).result == "b"
    assert (len(calls), endless.calls) == (1, 1)


async def test_a_crash_while_functions_run_does_not_restart_the_time(kit: Any) -> None:
    calls = []

    @flow("race", emits=[], retry=5)
    async def race(order: Any, ctx: Context) -> Any:
        return (await ctx.first({"work": ctx.run("work", die), "late": ctx.wait.time("1s")}))[0]

    def die() -> None:
        calls.append(1)
        raise ConnectionError("its end is not recorded")

    async with kit(race) as app:
        app.crash("race", after=True)
        assert (await app.run_flow(race, None)).result == "late"
    assert len(calls) == 1


async def test_a_handler_that_is_cancelled_cancels_its_functions() -> None:
    endless = EndlessFunction()

    @flow("race", emits=[])
    async def race(order: Any, ctx: Context) -> Any:
        await ctx.first({"work": ctx.run("work", endless), "late": ctx.wait.time("1d")})

    async with TestApp(handlers=[race]) as app:
        run = await app.start(race, None)
        await until(lambda: _called(endless))
        await app.runs.cancel(run)
        assert (await app.finish(run)).status == "cancelled"
        await until(lambda: _called(endless, cancelled=1))


async def _called(endless: EndlessFunction, cancelled: int = 0) -> bool:
    return endless.calls == 1 and endless.cancelled == cancelled
