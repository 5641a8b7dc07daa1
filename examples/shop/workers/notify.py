"""Writes to the customer, and shows the letter while it is being written."""

import asyncio

from orders import PACE

from penstock import Context, step


@step(on="order.shipped", retry=3)
async def notify(parcel: dict[str, object], ctx: Context) -> dict[str, object]:
    letter = f"Dear {parcel['customer']}, {parcel['lines']} articles are on their way: parcel {parcel['parcel']}."
    for word in letter.split():
        ctx.partial(word + " ")
        await asyncio.sleep(PACE / 5)
    return {"order": parcel["order"], "parcel": parcel["parcel"], "letter": letter}
