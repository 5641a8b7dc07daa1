"""The flows of worker processes that wait: for a time, for two events, for a trigger, for a timeout."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from typing import Any

from penstock import flow
from penstock.core.errors import AwaitTimeout
from penstock.testing.history import Trigger

from .line_log import LineLog
from .worker_flows import EFFECTS, MAX_STEP_MS, QUICK

TOKENS = LineLog("/dev/null" if str(EFFECTS.path) == "/dev/null" else f"{EFFECTS.path}.tokens")


async def _work() -> None:
    await asyncio.sleep(random.random() * MAX_STEP_MS / 1000)


@flow("nap", queue="a", emits=[], retry=QUICK)
async def nap(x: Any, ctx: Any) -> str:
    EFFECTS.record(ctx)
    await ctx.wait.time(datetime.fromtimestamp(x["until"] / 1000, UTC))
    await _work()
    return "rested"


@flow("order", queue="b", emits=[], retry=QUICK)
async def order(x: Any, ctx: Any) -> list[str]:
    EFFECTS.record(ctx)
    await _work()
    one = await ctx.wait.event("paid", match={"order": x["order"]}, name="one")
    await _work()
    other = await ctx.wait.event("paid", match={"order": x["order"]}, name="other")
    return [one.data["key"], other.data["key"]]


@flow("ask", queue="a", emits=[], retry=QUICK)
async def ask(x: Any, ctx: Any) -> Any:
    EFFECTS.record(ctx)
    trigger = await ctx.wait.trigger("approval", type="api")
    await ctx.run("publish", lambda: TOKENS.append(ctx.run_id, trigger.token))
    await _work()
    answer = await trigger.wait()
    await _work()
    return answer


@flow("late", queue="b", emits=[], retry=QUICK)
async def late(x: Any, ctx: Any) -> str:
    EFFECTS.record(ctx)
    try:
        await ctx.wait.event("never", timeout=x["timeout"])
    except AwaitTimeout:
        await _work()
        return "late"
    return "impossible"


HANDLERS = [nap, order, ask, late]
FLOWS = ("nap", "order", "ask", "late")
TRIGGERS = {name: {name: Trigger(())} for name in FLOWS}
