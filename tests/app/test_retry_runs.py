"""Retry the failed steps of a run, with or without dead letters; they keep their memos."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import flow, step
from penstock.app.run_actions import replay_run, retry_run
from penstock.core.errors import RunError
from penstock.core.ids import step_job_id


class Shop:
    """A flow whose first step charges, waits and then fails until it is fixed."""

    def __init__(self, *, letters: bool) -> None:
        self.broken = True
        self.charged = 0

        @flow("shop", dead_letters=letters)
        async def order(_input: Any, ctx: Any) -> Any:
            paid = await ctx.run("charge", self.charge)
            event = await ctx.wait.event("confirmed")
            if self.broken:
                raise ValueError("broken")
            return [paid, event.data]

        self.order = order

    def charge(self) -> int:
        self.charged += 1
        return self.charged


@pytest.mark.parametrize("letters", [True, False])
async def test_a_retried_step_keeps_its_memos(app: Any, letters: bool) -> None:
    shop = Shop(letters=letters)
    async with app(shop.order) as a, a.workers.background():
        run = await a.start("shop")
        await a.wait_for_step(run, "order", "suspended")
        await a.emit("confirmed", {"by": "ada"})
        assert await a.wait_for_end(run) == "failed"
        shop.broken = False
        done = await retry_run(a, run)
        assert list(done.sent.values()) == [f"{step_job_id(run, 'order', 1)}.redrive-1"]
        assert await a.result(run, timeout=20) == [1, {"by": "ada"}]
        assert shop.charged == 1, "what it had done is not done again"
        assert await a.list_dead_letters() == []


async def test_a_step_without_dead_letters_can_be_retried_repeatedly(app: Any) -> None:
    shop = Shop(letters=False)
    async with app(shop.order) as a, a.workers.background():
        run = await a.start("shop")
        await a.wait_for_step(run, "order", "suspended")
        await a.emit("confirmed", 1)
        assert await a.wait_for_end(run) == "failed"
        await retry_run(a, run)
        await a.wait_for_state(f"{step_job_id(run, 'order', 1)}.redrive-1", "failed")
        assert await a.wait_for_end(run) == "failed"
        shop.broken = False
        done = await retry_run(a, run)
        assert list(done.sent.values()) == [f"{step_job_id(run, 'order', 1)}.redrive-2"], (
            "only the last one is sent again"
        )
        assert await a.wait_for_end(run) == "completed"
        with pytest.raises(RunError, match="is completed, not failed"):
            await retry_run(a, run)


async def test_a_run_can_be_retried_after_its_dead_letter_was_discarded(app: Any) -> None:
    broken = True

    @flow("plain")
    async def plain() -> str:
        if broken:
            raise ValueError("broken")
        return "whole"

    async with app(plain) as a, a.workers.background():
        run, _ = await a.run_to_end("plain")
        assert await a.dead_letters.discard(step_job_id(run, "plain", 1))
        broken = False
        assert (await retry_run(a, run)).sent
        assert await a.result(run, timeout=20) == "whole"


async def test_a_waiting_step_is_not_retried(app: Any) -> None:
    """One of two branches fails and the other waits: only the failed one is retried."""
    broken = True

    @flow("fork", emits=["a", "b"])
    async def fork(ctx: Any) -> None:
        ctx.emit("a")
        ctx.emit("b")

    @step(on="a")
    async def fails() -> None:
        if broken:
            raise ValueError("broken")

    @step(on="b")
    async def waits(ctx: Any) -> None:
        await ctx.wait.event("done")

    async with app(fork, fails, waits) as a, a.workers.background():
        run = await a.start("fork")
        await a.wait_for_step(run, "fails", "failed")
        await a.wait_for_step(run, "waits", "suspended")
        broken = False
        assert list((await retry_run(a, run)).sent) == [f"{step_job_id(run, 'fails', 1)}.dlq"]
        await a.wait_for_state(f"{step_job_id(run, 'fails', 1)}.redrive-1", "completed")
        with pytest.raises(RunError, match="no failed step"):
            await retry_run(a, run)
        await a.emit("done")
        assert await a.wait_for_end(run) == "completed"


async def test_a_retried_step_waits_for_its_trigger_again(app: Any) -> None:
    tokens: list[str] = []
    broken = True

    @flow("approve")
    async def approve(ctx: Any) -> Any:
        trigger = await ctx.wait.trigger("approval")
        tokens.append(trigger.token)
        if broken:
            raise ValueError("broken")
        return await trigger.wait()

    async with app(approve) as a, a.workers.background():
        run, status = await a.run_to_end("approve")
        assert status == "failed"
        broken = False
        await retry_run(a, run)
        await a.wait_for_state(f"{step_job_id(run, 'approve', 1)}.redrive-1", "suspended")
        await a.waits.fire(tokens[-1], "yes")
        assert await a.result(run, timeout=20) == "yes"


async def test_a_replay_has_its_own_waits(app: Any) -> None:
    @flow("waits")
    async def waits(order: Any, ctx: Any) -> Any:
        event = await ctx.wait.event("paid", match={"order": order})
        return event.data["by"]

    async with app(waits) as a, a.workers.background():
        run = await a.start("waits", 7)
        await a.wait_for_step(run, "waits", "suspended")
        await a.emit("paid", {"order": 7, "by": "ada"})
        assert await a.result(run, timeout=20) == "ada"
        new = await replay_run(a, run, 8)
        await a.wait_for_step(new, "waits", "suspended")
        await a.emit("paid", {"order": 8, "by": "bob"})
        assert await a.result(new, timeout=20) == "bob"
