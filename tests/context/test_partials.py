"""Streamed output: the view of a step holds the chunks of one attempt, each once."""

from __future__ import annotations

from typing import Any

from penstock import Context, SyncContext, flow, job
from penstock.jobs.reducer import reduce_job


async def test_chunks_of_a_failed_attempt_do_not_stay(kit: Any) -> None:
    @flow("stream", emits=[], retry=2)
    async def stream(order: Any, ctx: Context) -> str:
        for word in ("once", "upon"):
            ctx.partial(f"{word} {ctx.attempt}")
        if ctx.attempt == 1:
            raise RuntimeError("the connection broke")
        return "done"

    async with kit(stream) as app:
        view = await app.run_flow(stream)
        assert view.steps["stream"].partials == ["once 2", "upon 2"]
        failed = next(e for e in await app.events.read_all(f"nq:flow:{view.id}") if e.kind == "step.failed")
        assert (await app.runs.at(view.id, failed.id)).steps["stream"].partials == []


async def test_chunks_of_a_crashed_attempt_do_not_stay(kit: Any) -> None:
    """Those before the recorded call are sent again: the next attempt would not be complete without them."""

    @flow("stream", emits=[])
    async def stream(order: Any, ctx: Context) -> str:
        ctx.partial(f"before {ctx.attempt}")
        await ctx.run("look up", lambda: 1)
        ctx.partial(f"after {ctx.attempt}")
        return "done"

    async with kit(stream) as app:
        app.crash("stream", after=True)
        view = await app.run_flow(stream)
        assert view.steps["stream"].partials == ["before 2", "after 2"]


async def test_chunks_of_a_suspended_attempt_stay_and_are_sent_once(kit: Any) -> None:
    @flow("stream", emits=[])
    async def stream(order: Any, ctx: Context) -> str:
        ctx.partial("one")
        await ctx.wait.time("1h")
        ctx.partial("two")
        await ctx.wait.event("go")
        ctx.partial("three")
        return "done"

    async with kit(stream) as app:
        run = await app.start(stream)
        await app.advance("1h")
        assert (await app.runs.get(run)).steps["stream"].partials == ["one", "two"]
        await app.emit("go")
        view = await app.finish(run)
        assert view.steps["stream"].partials == ["one", "two", "three"]
        sent = [e for e in await app.events.read_all(f"nq:flow:{run}") if e.kind == "step.partial"]
        assert [(e.data["chunk"], e.meta["index"]) for e in sent] == [("one", 0), ("two", 1), ("three", 2)]


async def test_a_resumed_attempt_that_crashes_sends_everything_again(kit: Any) -> None:
    @flow("stream", emits=[])
    def stream(order: Any, ctx: SyncContext) -> str:
        ctx.partial(f"one {ctx.attempt}")
        ctx.wait.time("1h")
        ctx.partial(f"two {ctx.attempt}")
        return "done"

    async with kit(stream) as app:
        app.crash("stream", attempt=2, after=True)
        view = await app.run_flow(stream)
        assert view.steps["stream"].partials == ["one 2", "two 2"]


async def test_a_redriven_step_sends_everything_again(kit: Any) -> None:
    """Its attempts count from 1 again, and its records are those of the first job."""
    fails = [True]

    @flow("stream", emits=[], retry=1)
    async def stream(order: Any, ctx: Context) -> str:
        ctx.partial("one")
        await ctx.wait.time("1h")
        ctx.partial("two")
        if fails:
            raise RuntimeError("no")
        return "done"

    async with kit(stream) as app:
        run = await app.start(stream)
        assert (await app.finish(run)).steps["stream"].partials == []
        fails.clear()
        ((id, _),) = await app.dead_letters.list("default")
        await app.dead_letters.redrive(id)
        assert (await app.finish(run)).steps["stream"].partials == ["one", "two"]


async def test_chunks_of_a_failed_attempt_of_a_job_do_not_stay(kit: Any) -> None:
    @job(queue="stream", retry=2)
    async def stream(input: Any, ctx: Context) -> str:
        ctx.partial(f"one {ctx.attempt}")
        if ctx.attempt == 1:
            raise RuntimeError("no")
        return "done"

    async with kit(stream) as app:
        assert await app.run_job("stream") == "done"
        assert reduce_job(await app.events.read_all("nq:queue:stream")).partials == ["one 2"]
