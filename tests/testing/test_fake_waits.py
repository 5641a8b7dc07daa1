"""FakeContext: waits and durable calls of a single step."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import AwaitTimeout, ChildFailure, Context, Event, SyncContext, flow
from penstock.core.errors import BadArgument, CallFailed, DuplicateName, NotJSON, SchemaViolation
from penstock.errors import ChildFailed
from penstock.testing import FakeClock, FakeContext

PAID = {"id": 7, "amount": 1200}


async def collect(order: dict[str, Any], ctx: Context) -> str:
    bill = await ctx.run("bill", lambda: f"bill-{order['id']}")
    try:
        paid = await ctx.wait.event("payment.confirmed", match={"id": order["id"]}, timeout="24h")
    except AwaitTimeout as late:
        return f"{bill} {late.code}"
    return f"{bill} {paid.data['amount']}"


async def test_an_event_comes_from_the_test() -> None:
    ctx = FakeContext(events={"payment.confirmed": PAID})
    assert await collect({"id": 7}, ctx) == "bill-7 1200"
    assert ctx.ran == [("bill", "bill-7")]
    assert ctx.waited == [("event", "payment.confirmed", {"match": {"id": 7}, "timeout": "24h"})]


@pytest.mark.parametrize("answer", [AwaitTimeout, AwaitTimeout("too late")])
async def test_a_simulated_timeout_moves_the_clock(answer: Any) -> None:
    ctx = FakeContext(events={"payment.confirmed": answer})
    before = ctx.now()
    assert await collect({"id": 7}, ctx) == "bill-7 AWAIT_TIMEOUT"
    assert ctx.now() - before == timedelta(hours=24)


async def test_a_missing_answer_is_an_error_that_names_the_argument() -> None:
    with pytest.raises(AssertionError, match=r"waits for the event 'payment.confirmed'.* FakeContext\(events="):
        await collect({"id": 7}, FakeContext())
    t = await FakeContext().wait.trigger("approval")
    with pytest.raises(AssertionError, match=r"FakeContext\(triggers=\{'approval': …\}\)"):
        await t.wait()
    with pytest.raises(AssertionError, match=r"match=\{'id': 8\}.*answers \{'id': 7"):
        await collect({"id": 8}, FakeContext(events={"payment.confirmed": PAID}))


async def test_an_answer_becomes_an_event() -> None:
    ctx = FakeContext(events={"a.b": 3, "mine": Event(id="1-1", ts="t", kind="x.y", subject="s", data=4)})
    found = await ctx.wait.event("a.b")
    assert (found.kind, found.data, found.ts) == ("a.b", 3, "2023-11-14T22:13:20.000Z")
    assert (await ctx.wait.event("x.y", name="mine")).data == 4
    with pytest.raises(NotJSON):
        await FakeContext(events={"a.b": object()}).wait.event("a.b")


async def test_a_tuple_holds_successive_answers() -> None:
    ctx = FakeContext(events={"tick": (1, 2)})
    got = []
    for _ in range(2):
        event = await ctx.wait.event("tick")
        got.append(event.data)
    assert got == [1, 2]
    with pytest.raises(AssertionError, match="waits for the event 'tick'"):
        await ctx.wait.event("tick", name="third")


async def approve(order: dict[str, Any], ctx: Context) -> Any:
    t = await ctx.wait.trigger("approval", timeout="7d", schema={"type": "object", "required": ["ok"]})
    await ctx.run("mail", lambda: f"{t.url} {t.name}")
    reminders = 0
    while True:
        which, answer = await ctx.first({"answer": t.wait(), "day": ctx.wait.time("24h", name="day")})
        if which == "answer":
            return [answer, reminders]
        reminders += 1


async def test_a_trigger_and_reminders() -> None:
    ctx = FakeContext(triggers={"approval": {"ok": True}})
    assert await approve({}, ctx) == [{"ok": True}, 0]
    assert ctx.ran[0].value.startswith("http://test/api/triggers/t-")
    assert ctx.waited[0] == ("trigger", "approval", {"timeout": "7d", "schema": {"type": "object", "required": ["ok"]}})
    with pytest.raises(SchemaViolation):
        await approve({}, FakeContext(triggers={"approval": {}}))


async def test_reminders_come_before_the_timeout_of_a_trigger() -> None:
    ctx = FakeContext(triggers={"approval": AwaitTimeout})
    before = ctx.now()
    with pytest.raises(AwaitTimeout):
        await approve({}, ctx)
    assert ctx.now() - before == timedelta(days=7)
    assert [wait.type for wait in ctx.waited].count("time") == 7


async def test_functions_that_race() -> None:
    """Functions take only the time by which they move the clock."""
    ctx = FakeContext()

    async def work(hours: int) -> int:
        ctx.clock.advance(hours * 3600)
        return hours

    calls = {"late": ctx.wait.time("2h"), "work": ctx.run("a", work, 1), "other": ctx.run("b", work, 1)}
    assert await ctx.first(calls) == ("work", 1)
    calls = {"work": ctx.run("c", work, 3), "late": ctx.wait.time("2h", name="again")}
    assert await ctx.first(calls, name="second") == ("late", None)
    assert ctx.ran == [("a", 1)]


def test_functions_that_race_without_a_loop() -> None:
    ctx = FakeContext().sync
    late = ctx.branch.event("payment.confirmed", timeout="1h")
    assert ctx.first({"late": late, "work": ctx.branch.run("a", lambda: 1)}) == ("work", 1)


async def test_time_passes_at_once() -> None:
    clock = FakeClock()
    ctx = FakeContext(clock=clock)
    await ctx.wait.time("1h")
    await ctx.wait.time(datetime(2030, 1, 1, tzinfo=UTC), name="new year")
    assert ctx.waited == [("time", "1h", {}), ("time", datetime(2030, 1, 1, tzinfo=UTC), {})]
    assert ctx.now() == datetime(2030, 1, 1, tzinfo=UTC)
    values = await ctx.all([ctx.wait.time("1h", name="x"), ctx.run("y", lambda: 2)])
    assert values == [None, 2]


async def test_a_wait_without_a_timeout_cannot_time_out() -> None:
    with pytest.raises(AssertionError, match="has no timeout"):
        await FakeContext(events={"a.b": AwaitTimeout}).wait.event("a.b")


async def test_ids_and_random_numbers_are_reproducible() -> None:
    one, two, other = FakeContext(), FakeContext(), FakeContext(seed=1)
    assert (one.uuid(), one.random(), one.now()) == (two.uuid(), two.random(), two.now())
    assert one.uuid() != one.uuid()
    assert other.uuid() != two.uuid()


async def test_the_rules_of_the_real_ctx_hold() -> None:
    ctx = FakeContext(step="charge")
    await ctx.run("a", lambda: 1)
    with pytest.raises(DuplicateName, match="step 'charge'"):
        await ctx.run("a", lambda: 2)
    with pytest.raises(NotJSON):
        await ctx.run("b", object)
    with pytest.raises(BadArgument, match="cannot wait"):
        FakeContext(run_id=None).wait.time("1h")
    assert await FakeContext(run_id=None).run("a", lambda: 1) == 1


async def test_tries_of_a_call_take_no_real_time() -> None:
    ctx, tries = FakeContext(), []

    def flaky() -> None:
        tries.append(ctx.clock.now_ms())
        raise ConnectionError("no")

    with pytest.raises(CallFailed, match="after 3 attempts: ConnectionError: no"):
        await ctx.run("flaky", flaky, retry=3)
    assert len(set(tries)) == 3


async def test_async_functions_and_timeouts_of_calls() -> None:
    async def five() -> int:
        return 5

    ctx = FakeContext()
    assert await ctx.run("five", five) == 5
    assert await ctx.run("timed", five, timeout="5s") == 5


def wait_in_turn(order: dict[str, Any], ctx: SyncContext) -> Any:
    ctx.wait.time("1h")
    t = ctx.wait.trigger("approval")
    number = ctx.run("number", lambda: 1)
    first = ctx.first({"paid": ctx.branch.event("payment.confirmed"), "late": ctx.branch.time("1d", name="day")})
    both = ctx.all([ctx.branch.run("twice", lambda: 2), t.branch])
    return [t.wait(), number, first[0], both, ctx.awaited]


def test_a_def_step_without_a_loop() -> None:
    ctx = FakeContext(events={"payment.confirmed": PAID}, triggers={"approval": "yes"}, awaited={"seen": True})
    assert wait_in_turn({}, ctx.sync) == ["yes", 1, "paid", [2, "yes"], {"seen": True}]
    assert ctx.ran == [("number", 1), ("twice", 2)]
    with pytest.raises(TypeError, match="make the handler async"):
        ctx.sync.run("async", collect, {}, ctx)


async def test_a_def_step_inside_a_loop() -> None:
    ctx = FakeContext(events={"payment.confirmed": PAID}, triggers={"approval": "yes"})
    assert wait_in_turn({}, ctx.sync)[0] == "yes"


async def test_concurrent_calls_of_a_step() -> None:
    async def handler(order: Any, ctx: Context) -> Any:
        async def approve() -> Any:
            trigger = await ctx.wait.trigger("approval")
            await ctx.run("mail", len, trigger.url)
            return await trigger.wait()

        return await asyncio.gather(
            *(ctx.run(f"tool {n}", asyncio.sleep, 0, n) for n in range(2)), ctx.wait.time("1h", name="nap"), approve()
        )

    ctx = FakeContext(triggers={"approval": {"ok": True}})
    assert await handler(None, ctx) == [0, 1, None, {"ok": True}]
    assert sorted(call.name for call in ctx.ran) == ["mail", "tool 0", "tool 1"]


@flow("sum")
async def add_up(numbers: list[int], ctx: Context) -> Any:
    doubled = await ctx.call_many("double", numbers)
    try:
        return sum(doubled) + await ctx.call("bonus", len(numbers))
    except ChildFailed as problem:
        return f"no bonus: {problem.failure.error}"  # type: ignore[attr-defined]


async def test_calls_of_child_runs_are_answered_by_the_test() -> None:
    ctx = FakeContext(calls={"double": lambda n: 2 * n, "bonus": 100})
    assert await add_up([1, 2], ctx) == 106
    assert [wait[:2] for wait in ctx.waited] == [("call", "double"), ("call", "bonus")]
    assert ctx.waited[0].options == {"inputs": [1, 2]}
    ctx = FakeContext(calls={"double": 0, "bonus": ChildFailure("r", "bonus", "failed", "empty")})
    assert await add_up([1, 2], ctx) == "no bonus: empty"


async def test_a_call_without_an_answer_names_the_flow() -> None:
    with pytest.raises(AssertionError, match=r"the flow 'double'.*calls="):
        await add_up([1], FakeContext())
