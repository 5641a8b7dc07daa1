"""Runs of another kind by name: `app.start`, `ctx.start` and `ctx.call` start them, and their jobs call other runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from countdown_engine import CountdownView, Engines

from penstock import ChildFailure, Context, flow
from penstock.core.errors import ConfigError, RunFailed, SchemaViolation, UnknownFlow
from penstock.testing.until import until


@flow("double")
async def double(n: int) -> int:
    return 2 * n


@flow("mission")
async def mission(n: int, ctx: Context) -> Any:
    return await ctx.call("countdown", n)


async def call_double(ctx: Context) -> Any:
    return await ctx.call(double, 21)


async def call_countdown(ctx: Context) -> Any:
    return [await ctx.call("countdown", 2), await ctx.call_many("double", [1, 2])]


async def wait_long(ctx: Context) -> None:
    await ctx.wait.event("never")


async def fail(ctx: Context) -> None:
    raise ValueError("scrubbed")


async def test_app_starts_a_run_of_another_kind_by_name(app: Any) -> None:
    async with app(engines=[Engines()]) as a, a.workers.background():
        run = await a.start("countdown", 2, key="c1")
        assert run == "c1"
        assert await run.result(timeout=20) == "lift off after 2"
        assert await a.start("countdown", 2, key="c1") == "c1"
        assert await a.start("countdown", 42) == "the-answer"  # its definition chooses the id
        assert (await a.runs.get("c1")) == CountdownView(2, "completed")


async def test_names_and_inputs_of_other_kinds_are_checked(memory: Any) -> None:
    @flow("countdown")
    async def twin() -> None: ...

    async with memory(double, engines=[Engines()]) as a:
        with pytest.raises(SchemaViolation, match="the input of countdown 'countdown' must be a number, got 'two'"):
            await a.start("countdown", "two")
        with pytest.raises(UnknownFlow, match="no flow named 'countdwn'; did you mean 'countdown'"):
            await a.start("countdwn", 2)
    async with memory(twin, engines=[Engines()]) as a:
        with pytest.raises(ConfigError, match="'countdown' is the name of a countdown and a flow; rename one of them"):
            await a.start("countdown", 2)


async def test_a_flow_calls_a_run_of_another_kind(app: Any) -> None:
    async with app(mission, engines=[Engines()]) as a, a.workers.background():
        run = await a.start(mission, 2)
        assert await a.result(run, timeout=20) == "lift off after 2"
        (child,) = await a.runs.children(run)
        assert (child.kind, child.flow, child.status, child.parent, child.is_called) == (
            *("countdown", "countdown", "completed"),
            *(run, True),
        )
        assert await a.store.stuck_runs() == []


async def test_a_step_starts_a_run_of_another_kind(app: Any) -> None:
    @flow("launcher")
    async def launcher(ctx: Context) -> str:
        return ctx.start("countdown", 1)

    async with app(launcher, engines=[Engines()]) as a, a.workers.background():
        run = await a.start(launcher)
        child = await a.result(run, timeout=20)
        await until(lambda: a.store.run(child))  # an internal job starts it
        assert await a.result(child, timeout=20) == "lift off after 1"
        (summary,) = await a.runs.children(run)
        assert (summary.id, summary.kind, summary.is_called) == (child, "countdown", False)


async def test_a_failure_of_another_kind_reaches_its_caller(app: Any) -> None:
    @flow("careful")
    async def careful(ctx: Context) -> Any:
        failure = await ctx.call("test", 1, on_failure="return")
        assert isinstance(failure, ChildFailure)
        return [failure.flow, failure.status, failure.error, failure.code]

    @flow("careless")
    async def careless(ctx: Context) -> Any:
        return await ctx.call("test", 1)

    async with app(careful, careless, engines=[Engines(test=fail)]) as a, a.workers.background():
        assert await a.result(await a.start(careful), timeout=20) == ["test", "failed", "scrubbed", "scrubbed"]
        with pytest.raises(RunFailed, match="of flow 'test' failed: scrubbed"):
            await a.result(await a.start(careless), timeout=20)


async def test_a_run_of_another_kind_calls_flows_and_its_own_kind(app: Any) -> None:
    engines = Engines(single=call_double, both=call_countdown)
    async with app(double, engines=[engines]) as a, a.workers.background():
        run = await a.start("single", 1)
        assert await run.result(timeout=20) == 42
        # The events of its waits are in its own stream.
        kinds = [event.kind for event in await a.events.read(f"nq:countdown:{run}")]
        assert kinds == ["step.await.call", "step.resumed", "countdown.ticked", "countdown.completed"]
        assert await a.events.read(f"nq:flow:{run}") == []
        both = await a.start("both", 1)
        assert await both.result(timeout=20) == ["lift off after 2", [2, 4]]
        children = await a.runs.children(both)
        assert sorted(child.kind for child in children) == ["countdown", "flow", "flow"]
        assert {(child.parent, child.root, child.depth) for child in children} == {(both, both, 1)}
        assert await a.store.stuck_runs() == []


async def test_a_cancellation_reaches_the_children_of_another_kind(app: Any) -> None:
    @flow("patient")
    async def patient(ctx: Context) -> Any:
        return await ctx.call("outer", 1)

    async def outer(ctx: Context) -> Any:
        return await ctx.call("inner", 1)

    async with app(patient, engines=[Engines(outer=outer, inner=wait_long)]) as a, a.workers.background():
        run = await a.start(patient)
        await until(lambda: _has_waiting_grandchild(a, run))
        await a.runs.cancel(run, "enough")
        found = await asyncio.gather(*(a.runs.wait(one, timeout=20) for one in await _descendants(a, run)))
        assert [(one.flow, one.status) for one in found] == [("outer", "cancelled"), ("inner", "cancelled")]
        assert await a.waits.list() == []
        assert await a.store.stuck_runs() == []


async def _descendants(a: Any, run: str) -> list[str]:
    (child,) = await a.runs.children(run)
    (grandchild,) = await a.runs.children(child.id)
    return [child.id, grandchild.id]


async def _has_waiting_grandchild(a: Any, run: str) -> bool:
    return [wait.name for wait in await a.waits.list(kind="event")] == ["never"]
