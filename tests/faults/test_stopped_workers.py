"""Workers that stand still for longer than their leases, and a job that kills whoever runs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FULL
from faultkit.backends import Backend
from faultkit.fleet import Fleet
from faultkit.pausing import pause_workers
from faultkit.trades import HANDLERS

from penstock import App
from penstock.ports.unit import JobState
from penstock.testing.history import check, read_history
from penstock.testing.until import until

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1200)]

PAUSES, JOBS = (200, 2000) if FULL else (8, 120)


async def test_a_worker_that_stood_still_records_nothing(
    shared: Backend, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    report = await pause_workers(shared, tmp_path, pauses=PAUSES, jobs=JOBS, seed=5)
    tell(f"{shared.name}: {report}")
    assert report.violations == []
    assert report.late_committed == 0
    assert report.late_fenced > 0, "no late commit was tried: nothing was tested"
    assert report.completed == JOBS


async def test_a_poison_job_is_dead_after_its_crashes_and_the_good_ones_are_done(
    shared: Backend, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    crashes = 3
    async with App(shared.url(tmp_path), handlers=HANDLERS) as app:
        goods = await app.enqueue_many("good", [{"n": n} for n in range(200)])
        bad = await app.enqueue("poison", {"n": 0}, id="bad")
        began = time.monotonic()
        with Fleet(shared.url(tmp_path), tmp_path, lease="500ms", max_crashes=crashes, spares=1) as fleet:
            for _ in range(2):
                fleet.hire()
            supervisor = asyncio.create_task(_supervise(fleet))
            try:
                await until(lambda: _dead(app, bad), timeout=60)
                await until(lambda: _all_done(app, "good", len(goods)), timeout=60)
            finally:
                supervisor.cancel()
                await asyncio.wait((supervisor,))
        history = await read_history(app.store, effects=fleet.effects.read(), acknowledged=[*goods, bad])
        assert check(history) == []
        [(id, letter)] = await app.dead_letters.list("poison")
        assert letter.error["code"] == "worker_lost"
        runs = [effect for effect in history.effects if effect.job == bad]
        # Three crashes are forgiven; the fourth is the end of it.
        assert len(runs) == crashes + 1
        assert (await app.queues.counts("good"))["completed"] == len(goods)
        tell(
            f"{shared.name}: poison ran {len(runs)} times, then lay in {id}; 200 good ones done, {time.monotonic() - began:.1f} s"
        )


async def _supervise(fleet: Fleet) -> None:
    """Hires a new worker for each that died."""
    while True:
        for workman in list(fleet.working):
            if not workman.alive:
                fleet.kill(workman)
                fleet.hire()
        await asyncio.sleep(0.05)


async def _dead(app: App, job: str) -> bool:
    row = await app.store.job(job)
    return row is not None and row.state is JobState.FAILED


async def _all_done(app: App, queue: str, count: int) -> bool:
    return (await app.queues.counts(queue))["completed"] == count
