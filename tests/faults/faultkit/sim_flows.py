"""The flows and jobs of the simulation. Each records its executions and takes a random, seeded time."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock import Permanent, Retry, flow, job, step
from penstock.testing.history import Effect, Trigger

# The simulation that runs now: one at a time in a process.
SIMULATION: Any = None


async def work(ctx: Any, slow: float = 0.0) -> None:
    """Record the execution, log sometimes and take a while. Every handler calls this first."""
    SIMULATION.effects.append(
        Effect(ctx.run_id or "", ctx.step or ctx.queue, ctx.job_id, ctx.attempt, ctx.idempotency_key())
    )
    dice = SIMULATION.dice(ctx.job_id, ctx.attempt)
    execution = f"{ctx.job_id}/{len(SIMULATION.effects)}"
    if dice.random() < 0.3:
        ctx.log(f"{execution}/start")
    await asyncio.sleep(dice.choice((0.0, 0.01, 0.05, 0.3)) + slow * dice.random())
    if dice.random() < 0.3:
        ctx.progress(f"{execution}/half")
        await asyncio.sleep(dice.choice((0.0, 0.05, 0.2)))
    if dice.random() < 0.1:
        ctx.partial(f"{execution}/some")


async def _fail_sometimes(ctx: Any, chance: float) -> None:
    if ctx.attempt < 4 and SIMULATION.dice(ctx.job_id, ctx.attempt, "fail").random() < chance:
        raise Retry("random failure")


QUICK = {"attempts": 8, "backoff": {"type": "fixed", "delayMs": 200, "jitter": False}}


@flow("line", queue="a", emits="line.one", retry=QUICK)
async def line_1(x: Any, ctx: Any) -> None:
    await work(ctx)
    ctx.emit("line.one", x)


@step(on="line.one", queue="b", emits="line.two", retry=QUICK)
async def line_2(x: Any, ctx: Any) -> None:
    await work(ctx, 0.5)
    await _fail_sometimes(ctx, 0.3)
    ctx.emit("line.two", x)


@step(on="line.two", queue="a", retry=QUICK)
async def line_3(x: Any, ctx: Any) -> Any:
    await work(ctx)
    return x


@flow("fan", queue="a", emits=["fan.part", "fan.go"], retry=QUICK)
async def fan_split(x: Any, ctx: Any) -> None:
    await work(ctx)
    for part in range(x["parts"]):
        ctx.emit("fan.part", {"part": part})
    ctx.emit("fan.go", {})


@step(on="fan.part", mode="each", queue="b", emits=[], retry=QUICK)
async def fan_work(x: Any, ctx: Any) -> Any:
    await work(ctx, 0.3)
    await _fail_sometimes(ctx, 0.2)
    await ctx.shared.patch("count", lambda n: (n or 0) + 1)
    SIMULATION.patched.add(ctx.idempotency_key())
    return x["part"]


@step(on="fan.go", queue="a", emits="fan.left", retry=QUICK)
async def fan_left(x: Any, ctx: Any) -> None:
    await work(ctx)
    ctx.emit("fan.left", {})


@step(on="fan.go", queue="b", emits="fan.right", retry=QUICK)
async def fan_right(x: Any, ctx: Any) -> None:
    await work(ctx, 1.5)
    ctx.emit("fan.right", {})


@step(on=["fan.left", "fan.right"], mode="all", queue="a", emits=[], retry=QUICK)
async def fan_join(x: Any, ctx: Any) -> str:
    await work(ctx)
    ctx.state.set("joined", True)
    return "joined"


@flow("doomed", queue="a", emits="doomed.go", retry=QUICK)
async def doomed_1(x: Any, ctx: Any) -> None:
    await work(ctx)
    ctx.emit("doomed.go", x)


@step(on="doomed.go", queue="b", emits=[], retry=2)
async def doomed_2(x: Any, ctx: Any) -> str:
    await work(ctx)
    if "redrive" not in ctx.job_id:
        raise Permanent("fails until it is redriven")
    return "redriven"


@flow("saga", queue="a", emits="saga.reserved", compensation="saga_undo", retry=QUICK)
async def saga_reserve(x: Any, ctx: Any) -> None:
    await work(ctx)
    ctx.emit("saga.reserved", x)


@step(on="saga.reserved", queue="b", emits=[])
async def saga_charge(x: Any, ctx: Any) -> None:
    await work(ctx)
    raise Permanent("no money")


@step(flow="saga", queue="a", emits=[], retry=QUICK)
async def saga_undo(x: Any, ctx: Any) -> None:
    await work(ctx)


@flow("door", queue="a", emits="door.open", accepts="guest.came", retry=QUICK)
async def door_open(x: Any, ctx: Any) -> None:
    await work(ctx, 3.0)
    ctx.emit("door.open", x)


@step(on="guest.came", mode="each", flow="door", queue="b", emits=[], retry=QUICK)
async def door_guest(x: Any, ctx: Any) -> None:
    await work(ctx)


@job(queue="mail", retry=QUICK)
async def mail(x: Any, ctx: Any) -> str:
    await work(ctx, 0.5)
    await _fail_sometimes(ctx, 0.3)
    return "sent"


HANDLERS = [
    line_1, line_2, line_3, fan_split, fan_work, fan_left, fan_right, fan_join, doomed_1, doomed_2, saga_reserve, saga_charge,
    saga_undo, door_open, door_guest, mail,
]  # fmt: skip

TRIGGERS = {
    "line": {"line_1": Trigger(()), "line_2": Trigger(("line.one",)), "line_3": Trigger(("line.two",))},
    "fan": {
        "fan_split": Trigger(()),
        "fan_work": Trigger(("fan.part",), "each"),
        "fan_left": Trigger(("fan.go",)),
        "fan_right": Trigger(("fan.go",)),
        "fan_join": Trigger(("fan.left", "fan.right"), "all"),
    },
    "doomed": {"doomed_1": Trigger(()), "doomed_2": Trigger(("doomed.go",))},
    "saga": {"saga_reserve": Trigger(()), "saga_charge": Trigger(("saga.reserved",))},
    "door": {"door_open": Trigger(()), "door_guest": Trigger(("guest.came",), "each")},
}
