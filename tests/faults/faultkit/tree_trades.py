"""Jobs of trees in suites with real processes: pages, and books that are bound of them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from penstock import Permanent, job

from .trades import EFFECTS, MOST_MS, QUICK


@job(queue="pages", retry=QUICK, dead_letters=False)
async def page(n: int, ctx: Any) -> int:
    EFFECTS.record(ctx)
    await asyncio.sleep(random.random() * MOST_MS / 1000)
    if n < 0:
        raise Permanent("torn")
    return n


@job(queue="books", retry=QUICK)
async def book(title: str, ctx: Any) -> Any:
    EFFECTS.record(ctx)
    values, torn = await ctx.children_values(), await ctx.failed_children()
    await asyncio.sleep(random.random() * MOST_MS / 1000)
    return {"title": title, "parts": [values[key] for key in sorted(values)], "torn": len(torn)}


HANDLERS = [page, book]
