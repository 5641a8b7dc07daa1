"""Durable calls run once across crashes, retries and waits, in `async def` and in `def` handlers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Context, SyncContext, flow, step
from penstock.core.errors import CallFailed


def make_flow(made: list[Any], *, sync: bool, retry: int = 3, fail_at: int = 0) -> Any:
    """Return a flow that pays once and waits an hour. Its attempt `fail_at` fails after that."""

    def note(ctx: Any) -> int:
        made.append(ctx.attempt)
        return len(made)

    @flow("pay", emits=["paid"], retry=retry)
    async def pay(order: Any, ctx: Context) -> Any:
        bill = await ctx.run("charge", note, ctx)
        ctx.emit("paid", {"bill": bill})
        await ctx.state.set("bills", bill)
        ctx.log("charged")
        await ctx.wait.time("1h")
        if ctx.attempt == fail_at:
            raise RuntimeError("not yet")
        return [bill, await ctx.run("thank", note, ctx)]

    @flow("pay", emits=["paid"], retry=retry)
    def pay_sync(order: Any, ctx: SyncContext) -> Any:
        bill = ctx.run("charge", note, ctx)
        ctx.emit("paid", {"bill": bill})
        ctx.state.set("bills", bill)
        ctx.log("charged")
        ctx.wait.time("1h")
        if ctx.attempt == fail_at:
            raise RuntimeError("not yet")
        return [bill, ctx.run("thank", note, ctx)]

    return pay_sync if sync else pay


both = pytest.mark.parametrize("sync", [False, True], ids=["async", "def"])


@pytest.mark.spec("001-6.7")
@both
async def test_a_call_runs_once_across_a_wait(kit: Any, sync: bool) -> None:
    made: list[int] = []
    async with kit(make_flow(made, sync=sync)) as app:
        run = await app.start("pay")
        assert (await app.finish(run)).result == [1, 2]
        assert made == [1, 1], "a resume continues its attempt"
        assert await app.emitted(run, "paid") == [{"bill": 1}]
        kinds = [event["kind"] for event in await app.history(run)]
        assert (kinds.count("log"), kinds.count("step.started"), kinds.count("paid")) == (1, 2, 1)


@pytest.mark.spec("001-6.7", "003-7.12")
@both
async def test_a_call_runs_once_across_a_retry(kit: Any, sync: bool) -> None:
    made: list[int] = []
    async with kit(make_flow(made, sync=sync, fail_at=1)) as app:
        run = await app.start("pay")
        assert (await app.finish(run)).result == [1, 2]
        assert made == [1, 2]
        assert await app.emitted(run, "paid") == [{"bill": 1}]
        assert [event["kind"] for event in await app.history(run)].count("log") == 1


@both
@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_call_runs_once_across_a_crash(kit: Any, sync: bool, attempt: int) -> None:
    made: list[int] = []
    async with kit(make_flow(made, sync=sync), lease="5s") as app:
        step_name = "pay_sync" if sync else "pay"
        app.crash(step_name, attempt=attempt, after=True)
        run = await app.start("pay")
        assert (await app.finish(run)).result == [1, 2]
        assert len(made) == 2
        assert await app.emitted(run, "paid") == [{"bill": 1}]


async def test_state_set_before_a_wait_is_set_once(kit: Any) -> None:
    @flow("counting", emits=[])
    async def counting(order: Any, ctx: Context) -> Any:
        await ctx.state.set("n", (await ctx.state.get("n") or 0) + 1)
        await ctx.wait.time("1h")
        await ctx.state.set("m", (await ctx.state.get("m") or 0) + 1)
        await ctx.wait.time("1h")
        return [await ctx.state.get("n"), await ctx.state.get("m")]

    async with kit(counting) as app:
        assert (await app.run_flow(counting, None)).result == [1, 1]


async def test_now_uuid_and_random_stay_the_same(kit: Any) -> None:
    seen: list[Any] = []

    @flow("values", emits=[])
    async def values(order: Any, ctx: Context) -> Any:
        seen.append((ctx.now(), ctx.uuid(), ctx.random(), ctx.uuid()))
        await ctx.wait.time("1h")
        return ctx.now().isoformat()

    async with kit(values) as app:
        view = await app.run_flow(values, None)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 4
    assert view.result != seen[0][0].isoformat()


@both
async def test_a_call_with_retry_is_retried_in_the_attempt_and_its_failure_is_recorded(kit: Any, sync: bool) -> None:
    tries: list[int] = []

    def refuse() -> None:
        tries.append(1)
        raise ValueError("no")

    policy = {"attempts": 2, "backoff": {"type": "fixed", "delayMs": 1, "jitter": False}}

    @flow("stubborn", emits=[])
    async def stubborn(order: Any, ctx: Context) -> str:
        with pytest.raises(CallFailed, match=r"charge#1 failed after 2 attempts: ValueError: no"):
            await ctx.run("charge", refuse, retry=policy)
        await ctx.wait.time("1h")
        return "went on"

    @flow("stubborn", emits=[])
    def stubborn_sync(order: Any, ctx: SyncContext) -> str:
        with pytest.raises(CallFailed, match=r"charge#1 failed after 2 attempts: ValueError: no"):
            ctx.run("charge", refuse, retry=policy)
        ctx.wait.time("1h")
        return "went on"

    async with kit(stubborn_sync if sync else stubborn) as app:
        assert (await app.run_flow("stubborn", None)).result == "went on"
    assert len(tries) == 2


async def test_a_failed_call_without_retry_runs_again_with_the_step(kit: Any) -> None:
    tries: list[int] = []

    @flow("again", emits=[], retry=2)
    async def again(order: Any, ctx: Context) -> Any:
        def once_failing() -> str:
            tries.append(1)
            if len(tries) == 1:
                raise ValueError("no")
            return "yes"

        return await ctx.run("charge", once_failing)

    async with kit(again) as app:
        assert (await app.run_flow(again, None)).result == "yes"


async def test_a_call_may_have_a_timeout(kit: Any) -> None:
    @flow("slow", emits=[])
    async def slow(order: Any, ctx: Context) -> Any:
        try:
            await ctx.run("hang", asyncio.Event().wait, timeout="10ms", retry=1)
        except Exception as problem:
            return [type(problem).__name__, str(problem)]

    async with kit(slow) as app:
        assert (await app.run_flow(slow, None)).result == [
            "AttemptTimeout",
            "hang#1 ran longer than its timeout of 0.01 s",
        ]


async def test_a_call_of_a_def_handler_refuses_a_timeout(kit: Any) -> None:
    @flow("slow", emits=[])
    def slow(order: Any, ctx: SyncContext) -> Any:
        try:
            ctx.run("hang", len, [], timeout="1s")  # type: ignore[arg-type]
        except Exception as problem:
            return str(problem)

    async with kit(slow) as app:
        assert "a running thread cannot be stopped" in (await app.run_flow(slow, None)).result


async def test_two_handlers_of_one_run_have_their_own_calls(kit: Any) -> None:
    made: list[str] = []

    @flow("two", emits=["go"])
    async def one(order: Any, ctx: Context) -> None:
        await ctx.run("work", made.append, "one")
        ctx.emit("go")
        await ctx.wait.time("1h")

    @step(on="go", emits=[])
    async def other(order: Any, ctx: Context) -> None:
        await ctx.run("work", made.append, "other")
        await ctx.wait.time("1h")

    async with kit(one, other) as app:
        assert (await app.run_flow(one, None)).status == "completed"
    assert sorted(made) == ["one", "other"]
