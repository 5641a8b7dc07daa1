"""Retention by age and by count: live work is never removed, and nothing is left of what was removed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import flow, job
from penstock.app import workers as working
from penstock.core.errors import SettingError, UnknownRun
from penstock.ports.unit import DELIVERIES
from penstock.settings import Settings
from penstock.testing.clock import FakeClock
from penstock.testing.until import until


@pytest.fixture(autouse=True)
def _sweeps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "SWEEP_INTERVAL_S", 0.01)


@flow("quick")
async def quick() -> None: ...


@flow("asks")
async def asks(ctx: Any) -> Any:
    await ctx.run("once", lambda: 1)
    trigger = await ctx.wait.trigger("approval")
    return await trigger.wait()


@flow("waits")
async def waits(ctx: Any) -> Any:
    return (await ctx.wait.event("paid")).data


@job(queue="mail")
async def mail() -> None: ...


def ids(rows: list[Any]) -> set[str]:
    return {row.id for row in rows}


async def test_runs_by_count(app: Any, clock: FakeClock) -> None:
    async with app(quick, clock=clock, keep_runs=2) as a:
        runs = []
        async with a.workers.background():
            for _ in range(5):
                clock.advance("1s")
                runs.append((await a.run_to_end("quick"))[0])

            async def few() -> bool:
                return ids(await a.runs.list()) == set(runs[-2:])

            await until(few)
        with pytest.raises(UnknownRun):
            await a.runs.get(runs[0])


async def test_a_waiting_run_is_never_swept_and_a_swept_run_leaves_nothing(app: Any, clock: FakeClock) -> None:
    paid = asyncio.Event()

    @flow("waits")
    async def waits(ctx: Any) -> None:
        await ctx.wait.event("paid")
        paid.set()

    async with app(asks, waits, clock=clock, retain_runs="1h", keep_runs=0) as a, a.workers.background():
        alive = await a.start("waits")
        await a.wait_for_step(alive, "waits", "suspended")
        doomed = await a.start("asks")
        await a.wait_for_step(doomed, "asks", "suspended")
        (trigger,) = await a.waits.list(run=doomed)
        job = await a.store.job(f"{doomed}.asks.1")
        assert await a.store.memos(job.scope)
        a.advance_clock("30d")
        await a.runs.cancel(doomed)

        async def gone() -> bool:
            return await a.store.run(doomed) is None

        await until(gone)
        assert await a.store.memos(job.scope) == {}
        assert await a.store.wait_row(trigger.id) is None
        assert not [name for name in await a.store.streams(limit=1000) if trigger.id in name or doomed in name]
        assert await a.store.run(alive) is not None
        await a.emit("paid", 1)
        await asyncio.wait_for(paid.wait(), 20)


@pytest.mark.spec("000-3.22", "001-0.2", "001-6.1", "001-6.6")
async def test_jobs_and_events_by_count(app: Any) -> None:
    async with app(mail, keep_jobs=3, keep_events=4) as a, a.workers.background():
        for n in range(8):
            await a.enqueue("mail", key=f"m{n}")
        for n in range(6):
            await a.emit("noted", n)

        async def few() -> bool:
            counts = await a.queues.counts("mail")
            kept = counts["waiting"] + counts["active"] + counts["completed"]
            events = len(await a.job_events("mail")), len(await a.events.read_all("nq:global"))
            return (kept, events) == (3, (4, 4))

        await until(few)
        assert [e.data for e in await a.events.read_all("nq:global")] == [2, 3, 4, 5], "the newest are kept"


async def test_deliveries_are_swept_and_hidden(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "KEEP_DELIVERIES", 2)
    async with app(waits) as a, a.workers.background():
        run = await a.start("waits")
        await a.wait_for_step(run, "waits", "suspended")
        await a.queues.pause("default")  # so that the run stays queued
        for n in range(5):
            await a.emit("paid", n)

        async def few() -> bool:
            counts = await a.queues.counts(DELIVERIES)
            return (counts["waiting"], counts["active"]) == (0, 0) and counts["completed"] <= 2

        await until(few)
        assert DELIVERIES not in [row.name for row in await a.queues.list()]
        assert DELIVERIES in [row.name for row in await a.queues.list(internal=True)]


def test_counts_are_numbers_or_the_word_all(tmp_path: Any) -> None:
    def load(**given: Any) -> Settings:
        return Settings.load(given, env={}, folder=tmp_path)

    assert (load().keep_runs, load().keep_jobs, load().keep_events) == (None, None, None)
    assert (load(keep_runs="100").keep_runs, load(keep_jobs=0).keep_jobs) == (100, 0)
    assert load(keep_events="all").keep_events is None
    for wrong in ("many", -1, "1d"):
        with pytest.raises(SettingError, match="keep_runs"):
            load(keep_runs=wrong)
