"""Wait for events of any source, before or after the wait; each event is received once."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import AwaitTimeout, Context, SyncContext, flow, step
from penstock.durable.wait_records import sortable_wait_id

DAY = 24 * 3_600_000


@flow("order", emits=[])
async def order(order: dict[str, Any], ctx: Context) -> Any:
    event = await ctx.wait.event("payment.confirmed", match={"orderId": order["id"]}, timeout="1d")
    return event.data


@pytest.mark.spec("003-7.11")
async def test_an_event_resumes_only_the_matching_run(kit: Any) -> None:
    async with kit(order) as app:
        one, two = [await app.start(order, {"id": id}) for id in (1, 2)]
        await app.settle()
        await app.emit("payment.confirmed", {"orderId": 2, "by": "card"})
        await app.settle()
        assert (await app.runs.get(two)).result == {"orderId": 2, "by": "card"}
        assert (await app.runs.get(one)).steps["order"].status == "waiting"
        await app.emit("payment.confirmed", {"orderId": 1})
        assert (await app.finish(one)).result == {"orderId": 1}


@pytest.mark.parametrize("id", [7, "7", 7.5, True, None, "ä"], ids=repr)
async def test_match_compares_any_scalar(kit: Any, id: Any) -> None:
    async with kit(order) as app:
        run = await app.start(order, {"id": id})
        await app.settle()
        for other in (8, "8", 7.25, False, 0, 1, "a", {"id": id}):
            await app.emit("payment.confirmed", {"orderId": other})
        await app.settle()
        assert (await app.runs.get(run)).status == "waiting"
        await app.emit("payment.confirmed", {"orderId": id, "more": [1]})
        assert (await app.finish(run)).result == {"orderId": id, "more": [1]}


async def test_an_event_before_the_wait_is_found(kit: Any) -> None:
    @flow("late", emits=[])
    async def late(order: Any, ctx: Context) -> Any:
        await ctx.wait.time("1h")
        return (await ctx.wait.event("came.early")).data

    async with kit(late) as app:
        await app.emit("came.early", "before the run")
        run = await app.start(late, None)
        await app.settle()
        await app.emit("came.early", "before the wait")
        assert (await app.finish(run)).result == "before the wait"


async def test_two_waits_for_one_kind_get_two_events(kit: Any) -> None:
    @flow("pair", emits=[])
    async def pair(order: Any, ctx: Context) -> Any:
        await ctx.wait.time("1h")
        first = await ctx.wait.event("tick")
        second = await ctx.wait.event("tick")
        third = await ctx.wait.event("tick", timeout="1h")
        return [first.data, second.data, third.data]

    async with kit(pair) as app:
        run = await app.start(pair, None)
        await app.settle()
        for n in range(3):
            await app.emit("tick", n)
        assert (await app.finish(run)).result == [0, 1, 2]


async def test_past_false_ignores_earlier_events(kit: Any) -> None:
    @flow("fresh", emits=[])
    async def fresh(order: Any, ctx: Context) -> Any:
        await ctx.wait.time("1h")
        return (await ctx.wait.event("tick", past=False)).data

    async with kit(fresh) as app:
        run = await app.start(fresh, None)
        await app.settle()
        await app.emit("tick", "old")
        await app.advance("1h")
        assert (await app.runs.get(run)).status == "waiting"
        await app.emit("tick", "new")
        assert (await app.finish(run)).result == "new"


async def test_events_of_another_run_of_app_emit_and_of_a_stream(kit: Any) -> None:
    @flow("emitter", emits=["greeted"])
    async def emitter(order: Any, ctx: Context) -> None:
        ctx.emit("greeted", order)

    @flow("waiter", emits=[])
    async def waiter(order: Any, ctx: Context) -> Any:
        event = await ctx.wait.event("greeted", match={"to": order})
        return [event.kind, event.data["how"]]

    async with kit(emitter, waiter) as app:
        runs = {to: await app.start(waiter, to) for to in ("run", "app", "stream", "emit to run")}
        await app.settle()
        await app.run_flow(emitter, {"to": "run", "how": "a"})
        await app.emit("greeted", {"to": "app", "how": "b"})
        await app.events.append("nq:entity:order-7", "greeted", {"to": "stream", "how": "c"})
        await app.emit("greeted", {"to": "emit to run", "how": "d"}, run=runs["emit to run"])
        assert [(await app.finish(run)).result[1] for run in runs.values()] == ["a", "b", "c", "d"]


async def test_an_event_of_the_same_run(kit: Any) -> None:
    @flow("self", emits=["asked"])
    async def begin(order: Any, ctx: Context) -> Any:
        ctx.emit("asked")
        return (await ctx.wait.event("answered")).data

    @step(on="asked", emits=["answered"])
    async def answer(order: Any, ctx: Context) -> None:
        ctx.emit("answered", 42)

    async with kit(begin, answer) as app:
        run = await app.start("self", None)
        view = await app.finish(run)
        assert (view.status, view.steps["begin"].result) == ("completed", 42)


async def test_engine_events_cannot_be_waited_for(kit: Any) -> None:
    @flow("odd", emits=[])
    async def odd(order: Any, ctx: Context) -> Any:
        await ctx.wait.event("step.completed")

    async with kit(odd) as app:
        view = await app.run_flow(odd, None)
        assert (view.status, view.steps["odd"].error is not None) == ("failed", True)


async def test_one_event_resumes_three_hundred_runs(kit: Any) -> None:
    @flow("fan", emits=[])
    async def fan(order: Any, ctx: Context) -> Any:
        return (await ctx.wait.event("go")).data

    async with kit(fan) as app:
        runs = [await app.start(fan, n) for n in range(300)]
        await app.settle()
        assert len(await app.store.waits_by_time(kind="event", limit=1000)) == 300
        await app.emit("go", "all")
        await app.settle()
        rows = [await app.store.run(run) for run in runs]
        assert {row.status for row in rows} == {"completed"}
        assert await app.store.waits_by_time(limit=10) == []


@pytest.mark.spec("003-7.6")
async def test_a_caught_timeout(kit: Any) -> None:
    @flow("patient", emits=[])
    def patient(order: Any, ctx: SyncContext) -> Any:
        try:
            ctx.wait.event("never", timeout="1d")
        except AwaitTimeout as problem:
            return [problem.code, str(problem)]

    async with kit(patient) as app:
        start = app.time.now_ms()
        run = await app.start(patient, None)
        assert (await app.finish(run)).result == ["AWAIT_TIMEOUT", "never#1 did not arrive within 24 h"]
        assert app.time.now_ms() == start + DAY
        await app.emit("never", "too late")
        await app.settle()
        row = await app.store.wait_row(sortable_wait_id("event", f"{run}.patient.1", "never#1"))
        assert row.state == "expired"


@pytest.mark.spec("003-7.6", "003-7.7")
async def test_an_uncaught_timeout_is_a_permanent_failure(kit: Any) -> None:
    @flow("impatient", emits=[], retry=5)
    async def impatient(order: Any, ctx: Context) -> None:
        await ctx.wait.event("never", timeout="1h")

    async with kit(impatient) as app:
        run = await app.start(impatient, None)
        view = await app.finish(run)
        assert view.status == "failed"
        (failed,) = [e for e in await app.history(run) if e["kind"] == "step.failed"]
        assert (failed["data"]["code"], failed["data"]["willRetry"]) == ("AWAIT_TIMEOUT", False)
        ((_, letter),) = await app.dead_letters.list("default")
        assert letter.error["code"] == "AWAIT_TIMEOUT"


@pytest.mark.spec("003-7.12")
async def test_waits_for_events_survive_a_retry(kit: Any) -> None:
    @flow("flaky", emits=[], retry=3)
    async def flaky(order: Any, ctx: Context) -> Any:
        first = await ctx.wait.event("tick")
        if ctx.attempt == 1:
            raise RuntimeError("no")
        return [first.data, (await ctx.wait.event("tick")).data]

    async with kit(flaky) as app:
        run = await app.start(flaky, None)
        await app.settle()
        await app.emit("tick", 1)
        await app.advance("1m")
        await app.emit("tick", 2)
        assert (await app.finish(run)).result == [1, 2]
