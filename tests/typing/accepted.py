"""User code that type checkers accept; checked by test_typing.py, not executed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict, assert_type

import msgspec
from pydantic import BaseModel

from penstock import (
    App,
    Await,
    AwaitTimeout,
    Backoff,
    ChildFailure,
    Context,
    Event,
    RetryPolicy,
    Run,
    Subscription,
    SyncApp,
    SyncContext,
    SyncRun,
    flow,
    job,
    step,
)
from penstock.app.views import RunSummary
from penstock.context.state import StatePage
from penstock.testing import FakeClock, FakeContext, TestApp


@dataclass
class Order:
    id: int


class Parcel(msgspec.Struct):
    id: int


class Invoice(BaseModel):
    id: int


class Letter(TypedDict):
    id: int


@flow("orders", emits=["paid"], retry=3, timeout="30s", queue="orders", rate_limit="100/1m", rate_key="id")
async def orders(order: Order, ctx: Context) -> int:
    ctx.emit("paid", {"id": order.id})
    ctx.log.warning("paid", amount=5)
    assert_type(ctx.attempt, int)
    assert_type(ctx.run_id, str | None)
    return order.id


@flow("parcels", retry=RetryPolicy(3, Backoff("fixed", 1000)), delay=timedelta(seconds=1), key="auto")
def parcels(parcel: Parcel, ctx: SyncContext) -> int:
    ctx.state.set("seen", True, ttl="1h")
    return parcel.id


@flow("invoices", retry={"attempts": 3, "backoff": {"delay": "1s"}}, timeout=2.5, key=lambda i: str(i))
async def invoices(invoice: Invoice) -> int:
    return invoice.id


@flow("letters", input_schema={"type": "object"}, output_schema=Order, events={"sent": Parcel})
async def letters(letter: Letter, ctx: Context) -> int:
    return letter["id"]


@flow("anything", rate_limit={"max": 5, "duration": "1m"}, rate_key=lambda data: str(data["id"]))
async def anything(data: dict[str, Any], ctx: Context) -> None: ...


@flow("names", compensation={"step": "undo", "on": ["paid"]}, accepts="paid")
async def names(data: list[str]) -> None: ...


@flow("context")
async def only_context(ctx: Context) -> None: ...


@flow("thread")
def only_sync_context(ctx: SyncContext) -> None: ...


@flow("nothing")
def nothing() -> None: ...


@flow("optional")
async def optional(order: Order | None, ctx: Context) -> None: ...


@step(on=["paid", "sent"], mode="all", emits="shipped", concurrency=2, max_active=1, compensation="undo")
async def ship(order: dict[str, Any], ctx: Context) -> str:
    await ctx.state.set("x", 1)
    return str(await ctx.state.get("x"))


@step(subscriptions=[Subscription("paid", when={"id": 7}), {"eventKind": "sent"}], mode="each", dead_letters=False)
def tell(order: Order) -> None: ...


@job(queue="mail", name="send", retry=5, dead_letter_queue="lost")
async def send(mail: Letter) -> bool:
    return True


# The functions stay what they are.
assert_type(tell(Order(1)), None)
kept: Callable[[Order, Context], Coroutine[Any, Any, int]] = orders
thread: Callable[[Parcel, SyncContext], int] = parcels
mailed: Callable[[Letter], Coroutine[Any, Any, bool]] = send


async def starts(app: App) -> None:
    run = await app.start(orders, Order(1), delay="1h", tags={"by": "me"})
    assert_type(run, Run[int])
    assert_type(await run.result(timeout="1m"), int)
    id: str = run
    assert_type(await app.result(id), Any)
    assert_type(await app.start(parcels, Parcel(1)), Run[int])  # a def handler
    assert_type(await app.start(invoices, Invoice(id=1)), Run[int])
    assert_type(await app.start(nothing), Run[None])
    assert_type(await app.start(only_context), Run[None])
    assert_type(await app.start("orders", {"id": 1}), Run[Any])
    assert_type(await app.start(orders, Order(1), result=Parcel), Run[Parcel])
    assert_type(await app.start("orders", {"id": 1}, result=Parcel, key="o-1"), Run[Parcel])
    assert_type(await app.runs.start(orders, Order(1)), Run[int])
    assert_type(app.runs.handle("o-1", Parcel), Run[Parcel])
    assert_type(app.runs.handle("o-1"), Run[Any])
    await app.start(parcels, Parcel(1), key="p-1")
    await app.start(invoices, Invoice(id=1), priority=3)
    await app.start(letters, Letter(id=1))
    await app.start(anything, {"id": 1, "name": "x"})
    await app.start(names, ["a", "b"])
    await app.start(only_context)
    await app.start(only_sync_context)
    await app.start(nothing)
    await app.start(optional)
    await app.start(optional, Order(1))
    await app.start("orders", {"id": 1})
    await app.start("orders")


@flow("calls")
async def calls(ctx: Context) -> None:
    assert_type(await ctx.call(orders, Order(1)), int)
    assert_type(await ctx.call(parcels, Parcel(1), timeout="1h", key="p-1"), int)  # a def handler
    assert_type(await ctx.call(invoices, Invoice(id=1), on_failure="raise"), int)
    assert_type(await ctx.call(nothing), None)
    assert_type(await ctx.call(only_context), None)
    assert_type(await ctx.call(optional), None)
    assert_type(await ctx.call("orders", {"id": 1}), Any)
    assert_type(await ctx.call("orders", {"id": 1}, result=Parcel), Parcel)
    assert_type(await ctx.call(orders, Order(1), result=Parcel), Parcel)
    assert_type(await ctx.call(orders, Order(1), on_failure="return"), int | ChildFailure)
    assert_type(await ctx.call(parcels, Parcel(1), on_failure="return"), int | ChildFailure)
    assert_type(await ctx.call("orders", {"id": 1}, result=Parcel, on_failure="return"), Parcel | ChildFailure)
    assert_type(await ctx.call_many(orders, [Order(1), Order(2)]), list[int])
    assert_type(await ctx.call_many(parcels, (Parcel(n) for n in range(9))), list[int])
    assert_type(await ctx.call_many("orders", [{"id": 1}]), list[Any])
    assert_type(await ctx.call_many(orders, [Order(1)], on_failure="return"), list[int | ChildFailure])
    assert_type(await ctx.call_many("orders", [{"id": 1}], result=Parcel, name="two"), list[Parcel])
    which: tuple[str, Any] = await ctx.first({"made": ctx.call(orders, Order(1)), "late": ctx.wait.time("1h")})
    print(which)


@flow("blocks")
def blocks(ctx: SyncContext) -> None:
    assert_type(ctx.call(orders, Order(1)), int)
    assert_type(ctx.call(parcels, Parcel(1)), int)
    assert_type(ctx.call(nothing), None)
    assert_type(ctx.call("orders", {"id": 1}), Any)
    assert_type(ctx.call("orders", {"id": 1}, result=Parcel), Parcel)
    assert_type(ctx.call(orders, Order(1), on_failure="return"), int | ChildFailure)
    assert_type(ctx.call_many(orders, [Order(1)]), list[int])
    assert_type(ctx.call_many(parcels, [Parcel(1)], on_failure="return"), list[int | ChildFailure])


async def works() -> None:
    async with App(":memory:", handlers=[orders, ship], lease="10s", retain_runs="never", redact=["iban"]) as app:
        async with app.workers.background(concurrency=3, queues=["orders"]):
            await app.enqueue("mail", {"id": 1}, retry=3, delay="5s")
        await app.schedules.add("nightly", flow=orders, cron="0 3 * * *")


def waits() -> None:
    with SyncApp(dir="workers", log="info", log_format="json") as app:
        run = app.start(orders, Order(1), delay="1h")
        assert_type(run, SyncRun[int])
        assert_type(run.result(timeout="1m"), int)
        assert_type(app.start(parcels, Parcel(1)), SyncRun[int])
        assert_type(app.runs.handle(run, Parcel), SyncRun[Parcel])
        app.start(nothing)
        app.start("orders", {"id": 1})
        app.enqueue("mail", {"id": 1}, key="m-1")
        app.schedules.add("nightly", queue="mail", every="1d")
        app.workers.start(concurrency=2)
        assert_type(app.queues.counts("mail"), dict[str, int])
        assert_type(app.dead_letters.discard("m-1"), bool)
        assert_type(app.state.list("a"), StatePage)
        assert_type(app.events.read("nq:global"), list[Event])
        assert_type(app.runs.list(status="failed"), list[RunSummary])
        with app.workers.background(queues=["mail"]):
            app.workers.stop()


@flow("patient", start_on=["order.made"], wait={"type": "time", "delay": "1h"})
async def patient(order: Order, ctx: Context) -> None:
    paid = await ctx.wait.event("order.paid", match={"id": 1}, timeout="24h")
    assert_type(paid, Event)
    assert_type(await ctx.wait.time("1h"), None)
    approval = await ctx.wait.trigger("approval", type="user", timeout="7d", schema={"type": "object"})
    assert_type(approval.url, str)
    answer: dict[str, Any] = await approval.wait()
    await ctx.run("tell", tell, order, retry=3, timeout="5s")
    which, value = await ctx.first({"paid": ctx.wait.event("order.paid"), "late": ctx.wait.time("1h", name="late")})
    assert_type(which, str)
    assert_type(await asyncio.create_task(ctx.wait.event("order.paid")), Event)
    values: list[Any] = await ctx.all([ctx.run("a", lambda: 1), approval.wait()])
    print(ctx.now().isoformat(), ctx.uuid().upper(), ctx.random() + 1, ctx.awaited, answer, value, values)


@step(on="order.paid", wait=Await("event", event="parcel.packed", timeout="2d", on_timeout="ship"))
def patient_too(order: Order, ctx: SyncContext) -> None:
    assert_type(ctx.wait.event("order.paid", timeout=60), Event)
    ctx.wait.time("1h")
    approval = ctx.wait.trigger("approval")
    assert_type(approval.token, str)
    which, _ = ctx.first({"answer": approval.branch, "late": ctx.branch.time("1h", name="late")})
    assert_type(which, str)
    print(ctx.run("tell", tell, order), approval.wait())


async def answers(app: TestApp) -> None:
    assert_type(await app.fire("approval", {"ok": True}, run="r-1"), str)
    for wait in await app.pending_waits():
        print(wait.kind, wait.name, wait.until)
    ctx = FakeContext(events={"order.paid": {"id": 1}}, triggers={"approval": AwaitTimeout}, awaited={}, seed=3)
    await patient(Order(1), ctx)
    patient_too(Order(1), ctx.sync)
    print(ctx.waited[0].type, ctx.ran[0].value)


async def tests() -> None:
    async with TestApp(handlers=[orders, ship], clock=FakeClock()) as app:
        run = await app.run_flow(orders, Order(1))
        assert_type(run.status, str)
        await app.run_flow("orders", {"id": 1}, delay="1d")
        await app.run_flow(only_context)
    ctx = FakeContext(attempt=2, emits=["paid"])
    await orders(Order(1), ctx)
    parcels(Parcel(1), ctx.sync)
