"""Fan-out: every line is reserved by an instance of its own, side by side. The last one to finish says so."""

import asyncio

from orders import PACE

from penstock import Context, step


@step(on="line.requested", mode="each", queue="stock", emits=["stock.reserved"], retry=3, compensation="release")
async def reserve(line: dict[str, object], ctx: Context) -> None:
    await asyncio.sleep(PACE * ctx.n)
    # A patch is applied once, however often this attempt is repeated: the count is never too high.
    reserved = await ctx.state.patch("reserved", lambda before: (before or 0) + 1)
    if reserved == line["of"]:
        ctx.emit("stock.reserved", {"lines": reserved})


@step(queue="stock", retry=3)
async def release(undo: dict[str, dict[str, object]], ctx: Context) -> None:
    """Compensates `reserve`: it is given what that step got and gave."""
    line = undo["input"]
    ctx.log(f"{line['quantity']} × {line['sku']} back on the shelf")
