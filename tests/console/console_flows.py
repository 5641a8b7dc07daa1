"""Flows and jobs that the tests of the console run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from penstock import Context, flow, job, step
from penstock.errors import Permanent


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


HANDLERS = [accept, charge, ship, approval, slow, send]
