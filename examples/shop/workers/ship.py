"""Join: begins once the stock is reserved and the money is there. Its input has the data of both."""

import asyncio

from orders import PACE

from penstock import Context, Permanent, step


@step(on=["stock.reserved", "order.paid"], mode="all", emits=["order.shipped"], timeout="30s")
async def ship(arrived: dict[str, dict[str, object]], ctx: Context) -> dict[str, object]:
    order = arrived["order.paid"]
    if not order["deliverable"]:
        raise Permanent(f"no carrier delivers order {order['order']}")
    for percent in (25, 50, 75, 100):
        await asyncio.sleep(PACE)
        ctx.progress(percent)
    parcel = {
        "order": order["order"],
        "customer": order["customer"],
        "parcel": f"PS-{order['order']}",
        "lines": arrived["stock.reserved"]["lines"],
    }
    ctx.emit("order.shipped", parcel)
    return parcel
