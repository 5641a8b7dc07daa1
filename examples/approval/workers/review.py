"""Decides on an order: small ones by rule, large ones by a person, who has a week and is reminded after a day."""

from dataclasses import dataclass
from typing import Any

from outbox import send

from penstock import AwaitTimeout, Context, flow

SMALL = 10_000  # cents
ANSWER = {
    "type": "object",
    "required": ["approved", "by"],
    "properties": {"approved": {"type": "boolean"}, "by": {"type": "string"}},
}


@dataclass
class Order:
    id: str
    customer: str
    cents: int


@flow("order", emits=["order.approved", "order.rejected"])
async def review(order: Order, ctx: Context) -> str:
    if order.cents <= SMALL:
        ctx.emit("order.approved", {"id": order.id, "by": "rule"})
        return "small"
    answer = await ask(order, ctx)
    if answer is None:
        ctx.emit("order.rejected", {"id": order.id, "reason": "nobody answered within a week"})
        return "unanswered"
    if not answer["approved"]:
        ctx.emit("order.rejected", {"id": order.id, "reason": f"{answer['by']} declined"})
        return "rejected"
    ctx.emit("order.approved", {"id": order.id, "by": answer["by"]})
    return "approved"


async def ask(order: Order, ctx: Context) -> dict[str, Any] | None:
    """Writes to the manager, and waits. Everything here is run again when the wait is over; the letters are not."""
    approval = await ctx.wait.trigger("approval", timeout="7d", schema=ANSWER)
    await ctx.run("ask", send, "manager", f"Approve {order.cents} cents for {order.customer}?", approval.url)
    try:
        which, answer = await ctx.first({"answer": approval.wait(), "day": ctx.wait.time("1d", name="day")})
        if which == "day":
            await ctx.run("remind", send, "manager", f"{order.customer} still waits", approval.url)
            answer = await approval.wait()
    except AwaitTimeout:
        return None
    return dict(answer)
