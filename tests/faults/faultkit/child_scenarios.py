"""Crash points of child runs: none starts twice, no end of one is lost, and all of them follow a cancelled parent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock import ChildFailure, Context, Permanent, flow
from penstock.testing.history import History

from .scenario import Sandbox, Scenario

QUICK = {"attempts": 6, "backoff": {"type": "fixed", "delayMs": 100, "jitter": False}}


class ChildRunsScenario(Scenario):
    """Three levels: two calls at once, then many with one wait; one of them fails."""

    name = "child runs"

    def handlers(self, sandbox: Sandbox) -> list[Callable[..., Any]]:
        @flow("leaf", retry=QUICK, dead_letters=False)
        async def leaf(n: int, ctx: Context) -> int:
            sandbox.record(ctx)
            if n < 0:
                raise Permanent("torn")
            return n

        @flow("branch", retry=QUICK)
        async def branch(n: int, ctx: Context) -> int:
            sandbox.record(ctx)
            return 10 * await ctx.call(leaf, n)

        @flow("tree", retry=QUICK)
        async def tree(ctx: Context) -> Any:
            sandbox.record(ctx)
            two = await ctx.all([ctx.call(branch, 1), ctx.call(branch, 2)])
            many = await ctx.call_many(leaf, [3, -1], on_failure="return")
            return [*two, many[0], many[1].error if isinstance(many[1], ChildFailure) else many[1]]

        return [leaf, branch, tree]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("tree", "tree-1")
            await sandbox.settle()
            assert await sandbox.retry(lambda: sandbox.app.result("tree-1")) == [10, 20, 3, "torn"]

    async def check(self, sandbox: Sandbox, history: History) -> None:
        rows = {row.id: row for row in await sandbox.store.runs(limit=100)}
        assert len(rows) == 7, f"each child is started once: {sorted(rows)}"
        links = sorted((row.depth, row.root, rows[row.parent].flow) for row in rows.values() if row.parent is not None)
        one, two = (1, "tree-1", "tree"), (2, "tree-1", "branch")
        assert links == [one] * 4 + [two] * 2, f"children name their parents: {links}"
        for row in rows.values():
            assert row.parent is None or row.updated <= rows[row.parent].updated, "a parent ends after its children"


class CancelledParentScenario(Scenario):
    """A run is cancelled while its children, and theirs, wait."""

    name = "cancelled parent"

    def handlers(self, sandbox: Sandbox) -> list[Callable[..., Any]]:
        @flow("sleeper", retry=QUICK)
        async def sleeper(ctx: Context) -> None:
            sandbox.record(ctx)
            await ctx.wait.event("never")

        @flow("middle", retry=QUICK)
        async def middle(ctx: Context) -> Any:
            sandbox.record(ctx)
            return await ctx.call(sleeper)

        @flow("top", retry=QUICK)
        async def top(ctx: Context) -> Any:
            sandbox.record(ctx)
            return await ctx.all([ctx.call(middle), ctx.call_many(sleeper, [None, None])])

        return [sleeper, middle, top]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("top", "top-1")
            for _ in range(400):
                rows = await sandbox.store.runs(limit=100)
                waiting = [row for row in rows if row.flow == "sleeper" and row.status == "waiting"]
                if len(waiting) == 3 or any(row.closed for row in rows):
                    break
                await asyncio.sleep(0.1)
            await sandbox.retry(lambda: sandbox.app.runs.cancel("top-1", "enough"))
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        rows = await sandbox.store.runs(limit=100)
        ends = sorted((row.flow, row.status) for row in rows)
        expected = [("middle", "cancelled"), *[("sleeper", "cancelled")] * 3, ("top", "cancelled")]
        assert ends == expected, f"all follow their parent: {ends}"


CHILD_SCENARIOS = (ChildRunsScenario(), CancelledParentScenario())
