"""Flows and jobs that the tests of the console run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from penstock import Context, flow, job, step
from penstock.errors import Permanent, RateLimited


@dataclass
class Order:
    id: str
    total: int = 7
    fails: bool = False


@flow("order", emits=["order.accepted"])
async def accept(order: Order, ctx: Context) -> dict[str, Any]:
    ctx.log("accepted", total=order.total)
    await ctx.run("score", lambda: 3)
    ctx.emit("order.accepted", {"id": order.id, "fails": order.fails})
    return {"id": order.id}


@step(on="order.accepted", emits=["order.paid"])
async def charge(order: dict[str, Any], ctx: Context) -> str:
    for word in ("paid ", "with ", "card"):
        ctx.partial(word)
    if order["fails"] and not await ctx.shared.get("healthy"):
        raise Permanent(f"card of {order['id']} was declined")
    ctx.emit("order.paid", order)
    return "paid"


@step(on="order.paid")
async def ship(order: dict[str, Any], ctx: Context) -> str:
    return "shipped"


@flow("approval")
async def approval(order: dict[str, Any], ctx: Context) -> Any:
    trigger = await ctx.wait.trigger("approval", timeout="24h")
    return {"answer": await trigger.wait()}


@flow("slow")
async def slow(seconds: float, ctx: Context) -> str:
    await ctx.wait.time("1h")
    return "late"


@job(queue="mail")
async def send(to: str, ctx: Context) -> str:
    if to.startswith("bad"):
        raise ValueError(f"address {to} is not valid")
    await asyncio.sleep(0)
    return "sent"


@flow("family")
async def family(total: int, ctx: Context) -> str:
    await ctx.call(order_of_family, total)
    return "grown"


@flow("child", emits=["child.done"])
async def order_of_family(total: int, ctx: Context) -> str:
    await ctx.run("measure", lambda: total)
    return "small"


@flow("writer", retry={"attempts": 2, "backoff": {"type": "fixed", "delay_ms": 1}})
async def writer(text: str, ctx: Context) -> str:
    for word in (text, f" attempt {ctx.attempt}"):
        ctx.partial(word)
    ctx.log(f"writing, attempt {ctx.attempt}")
    if ctx.attempt == 1:
        raise ConnectionError("the model closed the stream")
    return text


@flow("pages", emits=["page.found"])
async def pages(number: int, ctx: Context) -> None:
    for n in range(number):
        ctx.emit("page.found", {"page": n})


@step(on="page.found", mode="each")
async def read_page(page: dict[str, Any], ctx: Context) -> str:
    if page["page"] == 13:
        raise Permanent("page 13 cannot be read")
    return "read"


@job(queue="reports")
async def long_report(text: str, ctx: Context) -> str:
    ctx.log("the report begins")
    await asyncio.sleep(3600)
    return text


@job(
    queue="press", concurrency=4, max_active=9, rate_limit={"max": 9, "duration": "1h", "per_key": True}, rate_key="who"
)
async def print_page(page: dict[str, Any]) -> None: ...


MET: set[str] = set()


@flow("careful")
async def careful(name: str, ctx: Context) -> str:
    """Meet the limit of another service once."""
    if name not in MET:
        MET.add(name)
        raise RateLimited("50ms", "the carrier allows no more")
    return "through"


HANDLERS = [
    accept,
    charge,
    ship,
    approval,
    slow,
    send,
    family,
    order_of_family,
    writer,
    pages,
    read_page,
    long_report,
    print_page,
    careful,
]
