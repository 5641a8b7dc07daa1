"""The flow begins here: a bad order ends here too, before anything is reserved or charged."""

from orders import Order

from penstock import Context, Permanent, flow


@flow("shop", emits=["line.requested", "order.accepted"])
async def validate(order: Order, ctx: Context) -> dict[str, object]:
    if not order.lines:
        raise Permanent(f"order {order.id} has no lines")
    for line in order.lines:
        ctx.emit("line.requested", {"sku": line.sku, "quantity": line.quantity, "of": len(order.lines)})
    accepted = {
        "order": order.id,
        "customer": order.customer,
        "total": order.total,
        "deliverable": order.deliverable,
    }
    ctx.emit("order.accepted", accepted)
    return accepted
