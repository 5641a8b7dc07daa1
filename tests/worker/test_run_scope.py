"""A worker with `runs=` works on those runs and on what their handlers start, and leaves everything else alone."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Context, SyncApp, flow, job, step
from penstock.errors import BadArgument
from penstock.testing.until import until

RAN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


@flow("order", emits=["paid"], retry={"attempts": 3, "backoff": {"type": "fixed", "delay": 10}})
async def order(name: str, ctx: Context) -> None:
    RAN.append(f"order {name}")
    if ctx.attempt == 1:
        raise LookupError("once more")
    ctx.emit("paid", name)


@step(on="paid", queue="other")
async def ship(name: str, ctx: Context) -> str:
    await ctx.wait.event("picked", match={"name": name})
    RAN.append(f"ship {name}")
    ctx.enqueue(mail, name)
    ctx.start(report, name)
    return name


@job(queue="mail")
async def mail(name: str) -> None:
    RAN.append(f"mail {name}")


@flow("report", queue="mail")
async def report(name: str, ctx: Context) -> str:
    ctx.enqueue(mail, f"{name} again")
    return name


HANDLERS = (order, ship, mail, report)


async def test_only_the_run_and_what_it_starts(app: Any) -> None:
    async with app(*HANDLERS) as a:
        foreign = await a.start(order, "foreign")
        foreign_mail = await a.enqueue(mail, "foreign")
        mine = await a.start(order, "mine")
        async with a.workers.background(runs=[mine]):
            await a.wait_for_step(mine, "ship", "suspended")
            await a.emit("picked", {"name": "mine"})
            assert await a.result(mine, timeout=20) == "mine"
            await until(lambda: len(RAN) == 5, 20)
            (child,) = a.workers.launched.runs
            assert await a.result(child, timeout=20) == "mine"
            assert len(a.workers.launched.jobs) == 2
        assert sorted(RAN) == ["mail mine", "mail mine again", "order mine", "order mine", "ship mine"]
        assert (await a.runs.get(foreign)).status == "running"
        for id in (foreign_mail, f"{foreign}.order.1"):
            row = await a.store.job(id)
            assert (row.state, row.attempt) == ("waiting", 0)
        async with a.workers.background():
            await a.emit("picked", {"name": "foreign"})
            assert await a.result(foreign, timeout=20) == "foreign"
            assert await a.jobs.result(foreign_mail, timeout=20) is None


async def test_another_worker_may_work_on_the_run_too(shared: Any) -> None:
    async with shared(*HANDLERS) as a, shared(*HANDLERS) as b:
        runs = [await a.start(order, str(n)) for n in range(6)]
        async with a.workers.background(runs=runs[:3]), b.workers.background():
            for n, run in enumerate(runs):
                await a.emit("picked", {"name": str(n)})
                assert await a.result(run, timeout=20) == str(n)
        assert sorted(one for one in RAN if one.startswith("ship")) == [f"ship {n}" for n in range(6)]


async def test_a_limited_worker_fires_no_schedules(app: Any, clock: Any) -> None:
    async with app(*HANDLERS, clock=clock) as a:
        await a.schedules.add("often", queue="mail", input="tick", every="1m")
        mine = await a.start(order, "mine")
        async with a.workers.background(runs=[mine]):
            a.advance_clock("1h")
            await a.wait_for_step(mine, "order", "delayed")
        assert await a.job_events("mail", "job.added") == []


def test_a_sync_app_works_on_some_runs(url: str) -> None:
    with SyncApp(url, handlers=[report, mail]) as app:
        foreign, mine = app.start(report, "foreign"), app.start(report, "mine")
        with app.workers.background(runs=[mine]):
            assert app.result(mine, timeout=20) == "mine"
        assert app.runs.get(foreign).status == "running"


async def test_runs_must_be_a_list(app: Any) -> None:
    async with app(*HANDLERS) as a:
        with pytest.raises(BadArgument, match="runs must be a list, got 'mine'"):
            await a.workers.run(runs="mine")
