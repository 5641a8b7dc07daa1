"""The flows and jobs of worker processes: three steps each, some with retries, a fan-out, a sync step; job trees."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from typing import Any

from penstock import Permanent, Retry, flow, job, step
from penstock.testing.faults import EffectLog
from penstock.testing.history import Trigger

from .line_log import LineLog

EFFECTS = EffectLog(os.environ.get("FAULTKIT_EFFECTS", "/dev/null"))
STARTED = LineLog(os.environ.get("FAULTKIT_STARTED", "/dev/null"))
MAX_STEP_MS = int(os.environ.get("FAULTKIT_STEP_MS", "60"))
QUICK = {"attempts": 1000, "backoff": {"type": "fixed", "delayMs": 50, "jitter": True}}


async def _work(ctx: Any) -> None:
    EFFECTS.record(ctx)
    await asyncio.sleep(random.random() * MAX_STEP_MS / 1000)


@flow("line", queue="a", emits="line.one", retry=QUICK)
async def line_1(x: Any, ctx: Any) -> None:
    await _work(ctx)
    ctx.emit("line.one", x)


@step(on="line.one", queue="b", emits="line.two", retry=QUICK)
def line_2(x: Any, ctx: Any) -> None:
    EFFECTS.record(ctx)
    time.sleep(random.random() * MAX_STEP_MS / 4000)
    ctx.emit("line.two", x)


@step(on="line.two", queue="a", emits=[], retry=QUICK)
async def line_3(x: Any, ctx: Any) -> Any:
    await _work(ctx)
    return x


@flow("flaky", queue="a", emits="flaky.one", retry=QUICK)
async def flaky_1(x: Any, ctx: Any) -> None:
    await _work(ctx)
    ctx.log("first")
    ctx.emit("flaky.one", x)


@step(on="flaky.one", queue="b", emits="flaky.two", retry=QUICK)
async def flaky_2(x: Any, ctx: Any) -> None:
    await _work(ctx)
    ctx.progress(50)
    if random.random() < 0.4:
        raise Retry("random failure")
    await ctx.shared.patch("total", lambda n: (n or 0) + 1)
    ctx.emit("flaky.two", x)


@step(on="flaky.two", queue="a", emits=[], retry=QUICK)
async def flaky_3(x: Any, ctx: Any) -> Any:
    await _work(ctx)
    return x


@flow("fan", queue="a", emits="fan.part", retry=QUICK)
async def fan_1(x: Any, ctx: Any) -> None:
    await _work(ctx)
    for n in range(3):
        ctx.emit("fan.part", n)


@step(on="fan.part", mode="each", queue="b", emits=["fan.l", "fan.m", "fan.r"], retry=QUICK)
async def fan_2(x: Any, ctx: Any) -> None:
    await _work(ctx)
    ctx.emit(("fan.l", "fan.m", "fan.r")[x], x)


@step(on=["fan.l", "fan.m", "fan.r"], mode="all", queue="a", emits=[], retry=QUICK)
async def fan_3(x: Any, ctx: Any) -> Any:
    await _work(ctx)
    return x


@job(queue="good", retry=QUICK)
async def good(x: Any, ctx: Any) -> str:
    await _work(ctx)
    return "good"


@job(queue="slow", retry=QUICK)
async def slow(x: Any, ctx: Any) -> str:
    """Take longer than the poison job needs to run again."""
    EFFECTS.record(ctx)
    await asyncio.sleep(1.2)
    return "good"


@job(queue="poison", retry=QUICK)
async def poison(x: Any, ctx: Any) -> None:
    EFFECTS.record(ctx)
    os.kill(os.getpid(), signal.SIGKILL)


@job(queue="held", retry=QUICK)
async def held(x: Any, ctx: Any) -> str:
    """Take long enough for its process to be stopped meanwhile."""
    EFFECTS.record(ctx)
    STARTED.append(os.getpid(), ctx.job_id, ctx.attempt)
    await asyncio.sleep(0.4)
    return "done"


@job(queue="pages", retry=QUICK, dead_letters=False)
async def page(n: int, ctx: Any) -> int:
    EFFECTS.record(ctx)
    await asyncio.sleep(random.random() * MAX_STEP_MS / 1000)
    if n < 0:
        raise Permanent("torn")
    return n


@job(queue="books", retry=QUICK)
async def book(title: str, ctx: Any) -> Any:
    EFFECTS.record(ctx)
    values, torn = await ctx.children_values(), await ctx.failed_children()
    await asyncio.sleep(random.random() * MAX_STEP_MS / 1000)
    return {"title": title, "parts": [values[key] for key in sorted(values)], "torn": len(torn)}


@job(queue="ordered", retry=QUICK)
async def ordered(n: int, ctx: Any) -> int:
    await _work(ctx)
    if random.random() < 0.25:
        raise Retry("random failure")
    return n


HANDLERS = [line_1, line_2, line_3, flaky_1, flaky_2, flaky_3, fan_1, fan_2, fan_3, good, slow, poison, held, ordered]
TREE_HANDLERS = [page, book]
FLOWS = ("line", "flaky", "fan")

TRIGGERS = {
    "line": {"line_1": Trigger(()), "line_2": Trigger(("line.one",)), "line_3": Trigger(("line.two",))},
    "flaky": {"flaky_1": Trigger(()), "flaky_2": Trigger(("flaky.one",)), "flaky_3": Trigger(("flaky.two",))},
    "fan": {
        "fan_1": Trigger(()),
        "fan_2": Trigger(("fan.part",), "each"),
        "fan_3": Trigger(("fan.l", "fan.m", "fan.r"), "all"),
    },
}
