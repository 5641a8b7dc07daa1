"""User code that type checkers refuse: each line with `# E:` is an error whose message contains one of the parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock import App, Context, SyncApp, SyncContext, flow, job, step
from penstock.testing import TestApp


@dataclass
class Order:
    id: int


@dataclass
class Parcel:
    id: int


@flow("orders")
async def orders(order: Order, ctx: Context) -> int:
    ctx.emit(order.id)  # E: "emit"
    print(ctx.nothing)  # E: "nothing"
    return order.id


@flow("nothing")
def nothing() -> None: ...


@flow("names")
async def names(data: list[str]) -> None: ...


async def starts(app: App) -> None:
    await app.start(orders, Parcel(1))  # E: "start"
    await app.start(orders)  # E: "start"
    await app.start(orders, {"id": 1})  # E: "start"
    await app.start(names, [1])  # E: "start"
    await app.start(nothing, 3)  # E: "start"
    await app.start(7)  # E: "start"
    await app.start(orders, Order(1), dellay="1h")  # E: "dellay" | No overloads for "start"
    await app.start(orders, Order(1), tags={"n": 1})  # E: "start" | Dict entry 0 has incompatible type
    run = await app.start(orders, Order(1))
    text: str = await run.result()  # E: "str"
    print(text, await run.results())  # E: "results"
    await app.enqueue("mail", {}, retry="often")  # E: "retry" | argument type "str"; | expected "RetryPolicy
    await app.schedules.add("nightly", evry="1d")  # E: "evry"
    App(leese="10s")  # E: "leese"
    App(log="loud")  # E: "log" | expected "Literal['debug'


def waits(app: SyncApp) -> None:
    app.start(orders, Parcel(1))  # E: "start"
    app.result("run", timeout=[1])  # E: "timeout" | expected "str | int | float | timedelta | None"


async def calls(ctx: Context) -> None:
    text: str = await ctx.call(orders, Order(1))  # E: "str" | Coroutine[Any, Any, str]
    many: list[str] = await ctx.call_many(orders, [Order(1)])  # E: "list[str]" | Coroutine[Any, Any, str]
    await ctx.call(orders, Parcel(1))  # E: "call"
    await ctx.call(orders)  # E: "call"
    await ctx.call(orders, Order(1), on_failure="ignore")  # E: "call"
    await ctx.call(orders, Order(1), timout="1h")  # E: "timout" | No overloads for "call"
    await ctx.call_many(orders, [Parcel(1)])  # E: "call_many" | List item 0 has incompatible type
    print(text, many)


def blocks(ctx: SyncContext) -> None:
    text: str = ctx.call(orders, Order(1))  # E: "str" | Coroutine[Any, Any, str]
    ctx.call(orders, Parcel(1))  # E: "call"
    print(text)


async def durable(ctx: Context) -> None:
    await ctx.wait.time([1])  # E: "time" | expected "str | int | float | timedelta | datetime" | "until"
    await ctx.wait.event("paid", timout="1h")  # E: "timout"
    await ctx.wait.event("paid", match="7")  # E: "match" | expected "Mapping[str, Any] | None"
    await ctx.wait.trigger("approval", type="pigeon")  # E: "type" | expected "Literal['webhook', 'user', 'api']"
    await ctx.run("name", 3)  # E: "run" | expected "Callable[..., Any]"
    await ctx.first([ctx.wait.time("1h")])  # E: "first" | expected "Mapping[str, Durable[Any]]"


async def tests(app: TestApp) -> None:
    await app.run_flow(orders, Parcel(1))  # E: "run_flow"
    await app.run_flow(orders, "7")  # E: "run_flow"


@step(on="paid", mode="twice")  # E: "mode" | expected "Literal['once', 'each', 'all']"
async def ship(order: Order) -> None: ...


@step(on="paid", retry="often")  # E: "retry" | expected "RetryPolicy
async def pack(order: Order) -> None: ...


@flow("timed", timeout=[3])  # E: "timeout" | expected "str | int | float | timedelta | None"
async def timed(order: Order) -> None: ...


@flow("unknown", retries=3)  # E: "retries"
async def unknown(order: Order) -> None: ...


@job(queue="mail", key=7)  # E: "key"
async def send(order: Order) -> bool:
    return True


changed: Any = orders(Parcel(1), 3)  # E: "orders" | "Parcel"
