"""The flows of worker processes that make concurrent durable calls, and that call other flows on three levels."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

from penstock import ChildFailure, Permanent, flow
from penstock.testing.history import Trigger

from .line_log import LineLog
from .worker_flows import EFFECTS, MAX_STEP_MS, QUICK

FUNCTIONS = LineLog("/dev/null" if str(EFFECTS.path) == "/dev/null" else f"{EFFECTS.path}.functions")


async def _work() -> None:
    await asyncio.sleep(random.random() * MAX_STEP_MS / 1000)


async def _function(run: str, name: str) -> str:
    """Return a value that no other execution returns."""
    await _work()
    value = os.urandom(6).hex()
    FUNCTIONS.append(run, name, value)
    return value


async def _branch(ctx: Any, n: int, pause_s: float) -> list[str]:
    before, after = f"before-{n}", f"after-{n}"
    one = await ctx.run(before, _function, ctx.run_id, before)
    await ctx.wait.time(pause_s, name=f"pause-{n}")
    return [one, await ctx.run(after, _function, ctx.run_id, after)]


@flow("gathered", queue="a", emits=[], retry=QUICK)
async def gathered(x: Any, ctx: Any) -> Any:
    """Branches in `asyncio.gather`: functions, times, an event and a child run."""
    EFFECTS.record(ctx)
    one, two, paid, child = await asyncio.gather(
        _branch(ctx, 0, x["pause"]),
        _branch(ctx, 1, x["pause"] / 2),
        ctx.wait.event("paid", match={"order": x["order"]}, name="paid"),
        ctx.call(leaf, x["order"]),
    )
    await _work()
    return {"values": [*one, *two], "rest": [paid.data["order"], child]}


@flow("grouped", queue="b", emits=[], retry=QUICK)
async def grouped(x: Any, ctx: Any) -> Any:
    """Branches in a TaskGroup; one of them waits for many children."""
    EFFECTS.record(ctx)
    async with asyncio.TaskGroup() as group:
        branches = [group.create_task(_branch(ctx, n, x["pause"] * n / 3)) for n in range(3)]
        children = group.create_task(_call_many(ctx, x["order"]))
    return {"values": [value for branch in branches for value in branch.result()], "rest": children.result()}


async def _call_many(ctx: Any, order: int) -> Any:
    first = await ctx.run("before-many", _function, ctx.run_id, "before-many")
    return [len(first), *await ctx.call_many(leaf, [order, order + 1])]


@flow("leaf", queue="a", emits=[], retry=QUICK, dead_letters=False)
async def leaf(n: int, ctx: Any) -> int:
    EFFECTS.record(ctx)
    await _work()
    if n < 0:
        raise Permanent("torn")
    return n


@flow("branch", queue="b", emits=[], retry=QUICK)
async def branch(n: int, ctx: Any) -> int:
    EFFECTS.record(ctx)
    return 10 * int(await ctx.call(leaf, n))


@flow("tree", queue="a", emits=[], retry=QUICK)
async def tree(x: Any, ctx: Any) -> Any:
    """Three levels: two calls at once, then many with one wait; one of them fails."""
    EFFECTS.record(ctx)
    two = await ctx.all([ctx.call(branch, 1), ctx.call(branch, 2)])
    await _work()
    many = await ctx.call_many(leaf, [3, 4, -1], on_failure="return")
    return [*two, *(one.error if isinstance(one, ChildFailure) else one for one in many)]


HANDLERS = [gathered, grouped, leaf, branch, tree]
FLOWS = ("gathered", "grouped", "tree")
TRIGGERS = {name: {name: Trigger(())} for name in (*FLOWS, "leaf", "branch")}
# The children of a run: flow, depth and flow of the parent.
CHILDREN = {
    "gathered": [("leaf", 1, "gathered")],
    "grouped": [("leaf", 1, "grouped")] * 2,
    "tree": [("branch", 1, "tree")] * 2 + [("leaf", 1, "tree")] * 3 + [("leaf", 2, "branch")] * 2,
}
NAMES = {
    "gathered": ["before-0", "after-0", "before-1", "after-1"],
    "grouped": ["before-0", "after-0", "before-1", "after-1", "before-2", "after-2"],
    "tree": [],
}


def expected_rest(flow: str, order: int) -> Any:
    """Return what a run returns besides the values of its functions."""
    if flow == "tree":
        return [10, 20, 3, 4, "torn"]
    return [order, order] if flow == "gathered" else [12, order, order + 1]
