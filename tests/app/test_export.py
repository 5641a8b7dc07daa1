"""Export and import a waiting run: it continues in the other store with what it recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock import flow
from penstock.app.export import Importer, ReplayClock, export_run, read_line
from penstock.core.ids import step_job_id
from penstock.testing.until import until


class Shop:
    """A flow that charges once, then waits for an event, a trigger and an hour."""

    def __init__(self) -> None:
        self.charged = 0
        self.tokens: list[str] = []

        @flow("shop")
        async def order(_input: Any, ctx: Any) -> Any:
            charged = await ctx.run("charge", self.charge)
            paid = await ctx.wait.event("paid", match={"order": 7})
            trigger = await ctx.wait.trigger("approval")
            self.tokens.append(trigger.token)
            approved = await trigger.wait()
            return [charged, paid.data["by"], approved]

        self.order = order

    def charge(self) -> int:
        self.charged += 1
        return self.charged


async def moved(app: Any, line: bytes, url: str, *handlers: Any) -> Any:
    """Return an App on another store that has imported the run."""
    clock = ReplayClock()
    new = type(app())(url, handlers=handlers, clock=clock)
    await new.open()
    importer = Importer(new, clock)
    saved = read_line(line, 1)
    await importer.check(saved)
    await importer.add(saved)
    return new


async def test_an_imported_run_continues_to_wait_for_its_event(app: Any, tmp_path: Path) -> None:
    shop = Shop()
    async with app(shop.order) as a, a.workers.background():
        run = await a.start("shop", 1)
        await a.wait_for_step(run, "order", "suspended")
        line = await export_run(a, run)
    new = await moved(app, line, f"sqlite:///{tmp_path}/other.db", shop.order)
    try:
        assert [(wait.kind, wait.event) for wait in await new.waits.list(run=run)] == [("event", "paid")]
        async with new.workers.background():
            await new.emit("paid", {"order": 7, "by": "ada"})
            await _until_trigger(new, run)
            await new.waits.fire(shop.tokens[-1], "yes")
            assert await new.result(run, timeout=20) == [1, "ada", "yes"]
        assert shop.charged == 1
    finally:
        await new.close()


async def test_a_token_works_after_the_import(app: Any, tmp_path: Path) -> None:
    shop = Shop()
    async with app(shop.order) as a, a.workers.background():
        run = await a.start("shop", 1)
        await a.wait_for_step(run, "order", "suspended")
        await a.emit("paid", {"order": 7, "by": "ada"})
        await _until_trigger(a, run)
        token = shop.tokens[-1]
        line = await export_run(a, run)
    new = await moved(app, line, f"sqlite:///{tmp_path}/other.db", shop.order)
    try:
        await new.waits.fire(token, "yes")
        async with new.workers.background():
            assert await new.result(run, timeout=20) == [1, "ada", "yes"]
    finally:
        await new.close()


async def test_an_imported_paused_run_stays_paused(app: Any, tmp_path: Path) -> None:
    shop = Shop()
    async with app(shop.order) as a, a.workers.background():
        run = await a.start("shop", 1)
        await a.wait_for_step(run, "order", "suspended")
        await a.runs.pause(run, "for the move")
        line = await export_run(a, run)
    new = await moved(app, line, f"sqlite:///{tmp_path}/other.db", shop.order)
    try:
        assert [row.id for row in await new.runs.list(status="paused")] == [run]
        async with new.workers.background():
            await new.wait_for_step(run, "order", "held")
            await new.runs.resume(run)
            await new.wait_for_step(run, "order", "suspended")
    finally:
        await new.close()


async def _until_trigger(a: Any, run: str) -> None:
    async def asleep() -> bool:
        job = await a.store.job(step_job_id(run, "order", 1))
        return job.state == "suspended" and bool(await a.waits.list(run=run, kind="trigger"))

    await until(asleep)
