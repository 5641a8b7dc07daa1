"""What becomes of an order once it is decided."""

from outbox import send

from penstock import Context, step


@step(on="order.approved")
async def deliver(order: dict[str, str], ctx: Context) -> str:
    await ctx.run("tell", send, "customer", f"{order['id']} is on its way, approved by {order['by']}")
    return f"delivered {order['id']}"


@step(on="order.rejected")
async def call_off(order: dict[str, str], ctx: Context) -> str:
    await ctx.run("tell", send, "customer", f"{order['id']} is called off: {order['reason']}")
    return f"called off {order['id']}"
