"""A flow in a process that waits: what a check replays."""

from __future__ import annotations

from typing import Any

from penstock import Context, flow


@flow("checked", step="checked", runner="process", emits=[])
async def checked(input: Any, ctx: Context) -> int:
    amount = await ctx.run("charge", lambda: 7)
    await ctx.wait.time("1h")
    return int(amount)


@flow("checked", step="checked", runner="process", emits=[])
async def changed(input: Any, ctx: Context) -> int:
    amount = await ctx.run("bill", lambda: 7)
    await ctx.wait.time("1h")
    return int(amount)
