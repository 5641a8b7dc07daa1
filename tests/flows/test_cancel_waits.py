"""Cancel a run that waits: its waits are cancelled with it, and firing its triggers raises."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import flow
from penstock.core.errors import TriggerCancelled
from penstock.flows.reducer import reduce_trigger
from penstock.testing.until import until


def approving(tokens: list[str]) -> Any:
    @flow("approve")
    async def approve(ctx: Any) -> Any:
        trigger = await ctx.wait.trigger("approval")
        tokens.append(trigger.token)
        return await trigger.wait()

    return approve


async def test_a_cancelled_run_cancels_its_triggers(app: Any) -> None:
    tokens: list[str] = []
    async with app(approving(tokens)) as a, a.workers.background():
        run = await a.start("approve")
        await a.wait_for_step(run, "approve", "suspended")
        (wait,) = await a.waits.list(run=run)
        assert await a.runs.cancel(run, "not needed")
        events = await a.events.read_all(f"nq:trigger:{wait.id}")
        assert [e.kind for e in events] == ["trigger.registered", "trigger.cancelled"]
        assert events[-1].data == {"reason": "not needed"}
        assert reduce_trigger(events).status == "cancelled"
        assert await a.waits.list(run=run) == []
        with pytest.raises(TriggerCancelled):
            await a.waits.fire(tokens[-1])
        assert (await a.wait_for_step(run, "approve", "cancelled")).attempt == 0, "its attempt never ended"


async def test_concurrent_fire_and_cancel_end_the_trigger_once(app: Any) -> None:
    tokens: list[str] = []
    async with app(approving(tokens), concurrency=50) as a, a.workers.background():
        runs = [await a.start("approve", key=f"r{n}") for n in range(30)]
        for run in runs:
            await a.wait_for_step(run, "approve", "suspended")
        waits = {wait.run: wait.id for wait in await a.waits.list(limit=100)}
        by_run = {run: next(t for t in tokens if t.startswith(f"{waits[run]}.")) for run in runs}
        work = [a.waits.fire(by_run[run], {}) for run in runs] + [a.runs.cancel(run) for run in runs]
        await asyncio.gather(*work, return_exceptions=True)
        for run in runs:
            status = await a.wait_for_end(run)
            kinds = [e.kind for e in await a.events.read_all(f"nq:trigger:{waits[run]}")]
            assert len(kinds) == 2, kinds
            assert status in ("cancelled", "completed")
            if status == "completed":
                assert kinds[-1] == "trigger.fired"


async def test_a_run_that_waits_for_an_event_is_cancelled_at_once(app: Any) -> None:
    @flow("waits")
    async def waits(ctx: Any) -> None:
        await ctx.wait.event("never")

    async with app(waits) as a, a.workers.background():
        run = await a.start("waits")
        await a.wait_for_step(run, "waits", "suspended")
        assert await a.runs.cancel(run)
        assert await a.waits.list(run=run) == []
        await a.emit("never", {})

        async def delivered() -> bool:
            return (await a.queues.counts("penstock-events"))["waiting"] == 0

        await until(delivered)
        assert (await a.kinds(run))[-1] == "flow.cancelled"
