"""Handlers that break replay rules: each mistake has its own error with a fix, and costs at most one redrive."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Context, SyncContext, flow
from penstock.app.run_actions import retry_run
from penstock.core.errors import ContextClosed
from penstock.durable import journal
from penstock.testing import TestApp
from penstock.testing.clock import FakeClock

Mistake = Callable[[Context, bool], Any]


async def kind_changed(ctx: Context, again: bool) -> Any:
    await (ctx.wait.time("1h", name="pay") if again else ctx.run("pay", lambda: 1))
    await ctx.wait.time("1h")


async def order_changed(ctx: Context, again: bool) -> Any:
    for name in ("b", "a") if again else ("a", "b"):
        await ctx.run(name, lambda: 1)
    await ctx.wait.time("1h")


async def duplicate_name(ctx: Context, again: bool) -> Any:
    await ctx.run("pay", lambda: 1)
    await ctx.run("pay", lambda: 2)


async def nested_call(ctx: Context, again: bool) -> Any:
    async def inner() -> Any:
        return await ctx.run("inner", lambda: 1)

    await ctx.run("outer", inner, retry=3)


async def wait_in_a_call(ctx: Context, again: bool) -> Any:
    async def inner() -> None:
        await ctx.wait.time("1h")

    await ctx.run("outer", inner)


async def swallowed_and_returned(ctx: Context, again: bool) -> Any:
    try:
        await ctx.wait.time("1h")
    except BaseException:
        return "never mind"


async def swallowed_and_raised(ctx: Context, again: bool) -> Any:
    try:
        await ctx.wait.time("1h")
    except BaseException as problem:
        raise RuntimeError("something") from problem


async def finally_returned(ctx: Context, again: bool) -> Any:
    try:
        await ctx.wait.time("1h")
    finally:
        return "never mind"  # noqa: B012


async def call_in_finally(ctx: Context, again: bool) -> Any:
    try:
        await ctx.wait.time("1h")
    finally:
        await ctx.run("clean up", lambda: UNWANTED.append(1))


async def not_json(ctx: Context, again: bool) -> Any:
    await ctx.run("look", lambda: {"rows": [1, {"when": object()}]})


async def too_large(ctx: Context, again: bool) -> Any:
    await ctx.run("look", lambda: "x" * 2**16)


async def emits_in_another_order(ctx: Context, again: bool) -> Any:
    for kind in ("y", "x") if again else ("x", "y"):
        ctx.emit(kind)
    await ctx.wait.time("1h")


async def another_branch_by_the_time(ctx: Context, again: bool) -> Any:
    await (ctx.wait.event("night", timeout="1h") if again else ctx.wait.event("day", timeout="1h"))


async def a_wait_left_out(ctx: Context, again: bool) -> Any:
    if not again:
        await ctx.wait.time("1h")
    return "done"


async def a_first_that_lost_its_winner(ctx: Context, again: bool) -> Any:
    late = {"later" if len(STARTS) > 2 else "late": ctx.wait.time("1h", name="a")}
    await ctx.first({**late, "paid": ctx.wait.event("paid")})
    await ctx.wait.time("1h", name="b")


async def mistake_that_is_caught(ctx: Context, again: bool) -> Any:
    await ctx.run("a", lambda: 1)
    try:
        await ctx.run("a", lambda: 2)
    except Exception:
        return "never mind"


UNWANTED: list[int] = []
STARTS: list[int] = []
MISTAKES: list[tuple[Mistake, str, str]] = [
    (
        kind_changed,
        "non_determinism",
        r"pay#1 was ctx.run when it was recorded, and now it is ctx.wait.time. Give the new call another name",
    ),
    (
        order_changed,
        "non_determinism",
        r"made the durable call a#1 before b#1, but this attempt makes it after. Every attempt",
    ),
    (
        duplicate_name,
        "duplicate_name",
        r"the name 'pay' is used for durable calls at .*errors.py:\d+ and at .*errors.py:\d+; use a different name",
    ),
    (nested_call, "concurrent_durable_call", r"inner was called inside the function of outer#1"),
    (wait_in_a_call, "concurrent_durable_call", r"time was called inside the function of outer#1"),
    (swallowed_and_returned, "suspend_swallowed", r"and then returned. Catch Exception, not BaseException"),
    (swallowed_and_raised, "suspend_swallowed", r"and then raised RuntimeError. Catch Exception, not BaseException"),
    (finally_returned, "suspend_swallowed", r"do not return from a finally block"),
    (call_in_finally, "suspend_swallowed", r"after time#1 had suspended the handler. Catch Exception"),
    (not_json, "not_json", r"'rows\[1\]\.when' in the value of look#1"),
    (
        too_large,
        "payload_too_large",
        r"the durable call look#1 returned 65,538 bytes; the limit for one value is 65,536 bytes. Set blob_url",
    ),
    (
        emits_in_another_order,
        "non_determinism",
        r"an earlier attempt emitted 'x' as event 1, but this attempt emits 'y'",
    ),
    (
        another_branch_by_the_time,
        "non_determinism",
        r"waited at day#1 .*\(last durable call: night#1\)",
    ),
    (a_wait_left_out, "non_determinism", r"waited at time#1 .*\(last durable call: none\)"),
    (a_first_that_lost_its_winner, "non_determinism", r"recorded 'late' as the winner of first#1.*later, paid"),
    (mistake_that_is_caught, "duplicate_name", r"the name 'a' is used for durable calls at"),
]


@flow("mistake", emits=["x", "y"])
async def fixed(order: Any, ctx: Context) -> str:
    return "fixed"


@pytest.mark.parametrize(
    ("mistake", "code", "expected"), MISTAKES, ids=[mistake.__name__ for mistake, _, _ in MISTAKES]
)
async def test_a_replay_error_is_permanent_and_the_run_continues_after_a_fix(
    shared_url: str, clock: FakeClock, mistake: Mistake, code: str, expected: str
) -> None:
    UNWANTED.clear()
    STARTS.clear()

    @flow("mistake", step="fixed", emits=["x", "y"], retry=5)
    async def mistaken(order: Any, ctx: Context) -> Any:
        STARTS.append(ctx.attempt)
        return await mistake(ctx, len(STARTS) > 1)

    async with TestApp(shared_url, handlers=[mistaken], clock=clock) as app:
        run = await app.start("mistake", None)
        assert (await app.finish(run)).status == "failed"
        failed = [e for e in await app.history(run) if e["kind"] == "step.failed"]
        assert len(failed) == 1, "it is not tried again"
        ((_, letter),) = await app.dead_letters.list("default")
        message = letter.error["message"]
        assert letter.error["code"] == code
        assert re.search(expected, message), message
        assert f"step 'fixed' of run {run}" in message
        assert await app.store.waits(run=run) == []
        assert UNWANTED == []
    async with TestApp(shared_url, handlers=[fixed], clock=clock) as app:
        assert (await retry_run(app, run)).sent
        assert (await app.finish(run)).result == "fixed"


async def test_history_limit(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_CALLS", 5)

    @flow("long", emits=[], retry=5)
    def work(order: Any, ctx: SyncContext) -> None:
        for _ in range(10):
            ctx.run("work", lambda: 1)

    async with kit(work) as app:
        run = await app.start(work, None)
        assert (await app.finish(run)).status == "failed"
        ((_, letter),) = await app.dead_letters.list("default")
        assert letter.error["code"] == "history_limit"
        for word in (run, "'work'", "work#6", "at most 5 durable calls", "Split the work into several steps"):
            assert word in letter.error["message"]


async def test_a_step_that_records_too_much_names_the_call(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_JOURNAL_BYTES", 100_000)

    @flow("long", emits=[], retry=5)
    async def work(order: Any, ctx: Context) -> None:
        for _ in range(10):
            await ctx.run("work", lambda: "x" * 60_000)

    async with kit(work) as app:
        run = await app.start(work, None)
        assert (await app.finish(run)).status == "failed"
        ((_, letter),) = await app.dead_letters.list("default")
        assert letter.error["code"] == "history_limit"
        for words in (
            run,
            "the result of work#2 (60,002 bytes)",
            "the limit for a step is 100,000 bytes",
        ):
            assert words in letter.error["message"]


async def test_a_ctx_is_closed_with_its_attempt(kit: Any) -> None:
    left: list[Any] = []
    go = asyncio.Event()

    @flow("leaves", emits=["x"])
    async def leaves(order: Any, ctx: Context) -> None:
        async def behind() -> None:
            await go.wait()
            await ctx.run("late", lambda: 1)

        left.extend((ctx, asyncio.create_task(behind())))

    async with kit(leaves) as app:
        run = await app.start(leaves, None)
        assert (await app.finish(run)).status == "completed"
        ctx, task = left
        for use in (ctx.now, lambda: ctx.emit("x"), lambda: ctx.run("a", len), lambda: ctx.wait.time("1h")):
            with pytest.raises(ContextClosed, match=r"attempt 1 of .*leaves.*is over"):
                use()
        go.set()
        with pytest.raises(ContextClosed):
            await task
        assert await app.emitted(run) == []


async def test_a_swallowed_suspension_on_a_thread(kit: Any) -> None:
    @flow("mistake", emits=[], retry=5)
    def mistaken(order: Any, ctx: SyncContext) -> Any:
        try:
            ctx.wait.time("1h")
        finally:
            ctx.run("clean up", lambda: UNWANTED.append(1))

    UNWANTED.clear()
    async with kit(mistaken) as app:
        run = await app.start(mistaken, None)
        assert (await app.finish(run)).status == "failed"
        ((_, letter),) = await app.dead_letters.list("default")
        assert letter.error["code"] == "suspend_swallowed"
    assert UNWANTED == []
