"""`ctx.wait.event(where=…)`: the handler's code accepts or rejects the events that match."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Context, SyncContext, flow
from penstock.core.errors import AwaitTimeout, BadArgument
from penstock.testing import FakeContext


def make_flow(judged: list[Any], **options: Any) -> Any:
    def where(event: Any) -> bool:
        judged.append(event.data["n"])
        return bool(event.data["n"] >= 3)

    @flow("pay")
    async def pay(_: None, ctx: Context) -> Any:
        try:
            event = await ctx.wait.event("paid", match={"order": 7}, where=where, **options)
        except AwaitTimeout:
            return "late"
        await ctx.wait.time("1h")  # the handler is replayed
        return event.data["n"]

    return pay


@pytest.mark.spec("003-7.2")
@pytest.mark.parametrize("past", [True, False])
async def test_rejected_events_leave_the_wait_pending(kit: Any, past: bool) -> None:
    judged: list[Any] = []
    async with kit(make_flow(judged, past=past)) as app:
        await app.emit("paid", {"order": 7, "n": 9})  # before the run
        run = await app.start("pay")
        await app.settle()
        for n in (1, 2):
            await app.emit("paid", {"order": 7, "n": n})
            await app.settle()
            (pending,) = await app.waits.list(run=run)
            assert pending.event == "paid"
        await app.emit("paid", {"order": 8, "n": 5})
        await app.settle()
        await app.emit("paid", {"order": 7, "n": 3})
        assert (await app.finish(run)).result == 3
        assert judged == [1, 2, 3]  # a replay does not ask again
        awaits = [event["data"] for event in await app.history(run) if event["kind"] == "step.await.event"]
        assert [data.get("rejected", 0) for data in awaits] == [0, 1, 2]
        assert len({data["wait"] for data in awaits}) == 3


@pytest.mark.parametrize("past", [True, False])
async def test_events_that_come_together_are_judged_one_by_one(kit: Any, past: bool) -> None:
    """The wait is not pending while its handler judges an event: it looks back for those that came meanwhile."""
    judged: list[Any] = []
    async with kit(make_flow(judged, past=past)) as app:
        run = await app.start("pay")
        await app.settle()
        for n in (1, 2, 0, 3):
            await app.emit("paid", {"order": 7, "n": n})
        assert (await app.finish(run)).result == 3
        assert judged[-1] == 3
        assert len(set(judged)) == len(judged)


async def test_a_rejected_event_does_not_extend_the_timeout(kit: Any) -> None:
    judged: list[Any] = []
    async with kit(make_flow(judged, timeout="1h")) as app:
        run = await app.start("pay")
        await app.settle()
        app.clock.advance("40m")
        await app.emit("paid", {"order": 7, "n": 1})
        await app.settle()
        before = app.clock.now_ms()
        assert (await app.finish(run)).result == "late"
        assert 19 * 60_000 <= app.clock.now_ms() - before <= 21 * 60_000
        assert judged == [1]


async def test_where_that_differs_on_a_replay_changes_nothing(kit: Any) -> None:
    answers = iter([False, True])

    @flow("pay")
    async def pay(_: None, ctx: Context) -> Any:
        event = await ctx.wait.event("paid", where=lambda _event: next(answers))
        await ctx.wait.time("1h")
        return event.data

    async with kit(pay) as app:
        run = await app.start("pay")
        await app.settle()
        for n in (1, 2):
            await app.emit("paid", n)
            await app.settle()
        assert (await app.finish(run)).result == 2


async def test_where_may_be_async_and_used_in_first(kit: Any) -> None:
    async def where(event: Any) -> bool:
        return bool(event.data == 2)

    @flow("pay")
    async def pay(_: None, ctx: Context) -> Any:
        return await ctx.first({"paid": ctx.wait.event("paid", where=where), "late": ctx.wait.time("1d")})

    async with kit(pay) as app:
        run = await app.start("pay")
        await app.settle()
        for n in (1, 2):
            await app.emit("paid", n)
            await app.settle()
        won, event = (await app.finish(run)).result
        assert (won, event["data"]) == ("paid", 2)
        assert await app.waits.list(run=run) == []


async def test_a_def_handler(kit: Any) -> None:
    @flow("pay")
    def pay(_: None, ctx: SyncContext) -> Any:
        return ctx.wait.event("paid", where=lambda event: event.data > 1).data

    async with kit(pay) as app:
        run = await app.start("pay")
        await app.settle()
        for n in (1, 2):
            await app.emit("paid", n)
        assert (await app.finish(run)).result == 2


async def test_an_operator_supplies_the_event_that_where_rejects(kit: Any) -> None:
    async with kit(make_flow([])) as app:
        run = await app.start("pay")
        await app.settle()
        (pending,) = await app.waits.list(run=run)
        await app.waits.resolve(pending.id, {"n": 0})
        assert (await app.finish(run)).result == 0


async def test_a_fake_context_calls_where() -> None:
    async def handler(ctx: Any) -> Any:
        return (await ctx.wait.event("paid", where=lambda event: event.data > 1)).data

    assert await handler(FakeContext(events={"paid": (1, 2)})) == 2
    with pytest.raises(AssertionError, match="rejects the test's answer 1; pass a tuple"):
        await handler(FakeContext(events={"paid": 1}))


async def test_where_must_be_a_function() -> None:
    ctx: Any = FakeContext()
    with pytest.raises(BadArgument, match="where must be a function of the event"):
        ctx.wait.event("paid", where={"n": 1})
