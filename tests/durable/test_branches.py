"""`ctx.all` and `ctx.first` with several waits and durable calls."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import AwaitTimeout, Context, SyncContext, flow

HOUR = 3_600_000


async def test_all_waits_for_every_branch(kit: Any) -> None:
    @flow("both", emits=[])
    async def both(order: Any, ctx: Context) -> Any:
        paid, sent, _, five = await ctx.all(
            [ctx.wait.event("paid"), ctx.wait.event("sent"), ctx.wait.time("1h"), ctx.run("five", lambda: 5)]
        )
        return [paid.data, sent.data, five]

    async with kit(both) as app:
        run = await app.start(both, None)
        await app.settle()
        await app.emit("sent", "s")
        await app.advance("2h")
        assert (await app.runs.get(run)).status == "waiting"
        await app.emit("paid", "p")
        assert (await app.finish(run)).result == ["p", "s", 5]


async def test_all_with_waits_for_one_kind_gets_an_event_each(kit: Any) -> None:
    @flow("votes", emits=[])
    async def votes(order: Any, ctx: Context) -> Any:
        return [e.data for e in await ctx.all([ctx.wait.event("vote") for _ in range(3)])]

    async with kit(votes) as app:
        run = await app.start(votes, None)
        await app.settle()
        for n in range(3):
            await app.emit("vote", n)
            await app.settle()
        assert sorted((await app.finish(run)).result) == [0, 1, 2]


@pytest.mark.parametrize("late", [False, True])
async def test_the_first_branch_wins_and_stays_the_winner(kit: Any, late: bool) -> None:
    @flow("race", emits=[])
    async def race(order: Any, ctx: Context) -> Any:
        who, value = await ctx.first({"paid": ctx.wait.event("paid", timeout="2h"), "late": ctx.wait.time("1h")})
        await ctx.wait.time("5h")  # by then the other would have been resolved or expired
        return [who, value.data if value is not None else None]

    async with kit(race) as app:
        run = await app.start(race, None)
        await app.settle()
        if late:
            await app.advance("1h")
        await app.emit("paid", 1)
        await app.settle()
        assert [row.kind for row in await app.store.waits(run=run)] == ["time"]
        assert (await app.finish(run)).result == (["late", None] if late else ["paid", 1])


async def test_a_timeout_may_end_first(kit: Any) -> None:
    @flow("race", emits=[])
    async def race(order: Any, ctx: Context) -> Any:
        try:
            await ctx.first({"paid": ctx.wait.event("paid", timeout="1h"), "late": ctx.wait.time("2h")})
        except AwaitTimeout:
            await ctx.wait.time("5h")
            return "timeout"

    async with kit(race) as app:
        assert (await app.run_flow(race, None)).result == "timeout"


async def test_branches_of_a_def_handler(kit: Any) -> None:
    @flow("race", emits=[])
    def race(order: Any, ctx: SyncContext) -> Any:
        a = ctx.all([ctx.branch.time("1h"), ctx.branch.run("two", lambda: 2)])
        trigger = ctx.wait.trigger("approval")
        who, value = ctx.first({"approved": trigger.branch, "paid": ctx.branch.event("paid")})
        return [a, who, value]

    async with kit(race) as app:
        run = await app.start(race, None)
        await app.advance("1h")
        await app.fire("approval", 7)
        assert (await app.finish(run)).result == [[None, 2], "approved", 7]


async def test_first_in_a_loop(kit: Any) -> None:
    @flow("collect", emits=[])
    async def collect(order: Any, ctx: Context) -> Any:
        got = []
        while True:
            who, event = await ctx.first({"item": ctx.wait.event("item"), "quiet": ctx.wait.time("1h")})
            if who == "quiet":
                return got
            got.append(event.data)

    async with kit(collect) as app:
        start = app.time.now_ms()
        run = await app.start(collect, None)
        for n in range(4):
            await app.advance("30m")
            await app.emit("item", n)
            await app.settle()
        assert (await app.finish(run)).result == [0, 1, 2, 3]
        assert app.time.now_ms() == start + 3 * HOUR
        assert await app.store.waits(run=run) == []
