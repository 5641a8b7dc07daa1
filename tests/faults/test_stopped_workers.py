"""Workers that are stopped for longer than their leases, and a job that kills every worker that runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit.backends import Backend
from faultkit.config import FULL
from faultkit.pause_workers import pause_workers
from faultkit.poison_workers import poison_workers

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1200)]

PAUSES, JOBS = (200, 2000) if FULL else (2, 30)


async def test_a_stopped_worker_records_nothing_late(
    shared: Backend, tmp_path: Path, show: Callable[[str], None]
) -> None:
    report = await pause_workers(shared, tmp_path, pauses=PAUSES, jobs=JOBS, seed=5)
    show(f"{shared.name}: {report}")
    assert report.violations == []
    assert report.late_committed == 0
    assert report.late_fenced > 0, "no late commit was tried: nothing was tested"
    assert report.completed == report.jobs >= JOBS


@pytest.mark.parametrize("workers", [1, 2] if FULL else [1])
async def test_a_poison_job_becomes_a_dead_letter_and_good_jobs_complete(
    shared: Backend, workers: int, tmp_path: Path, show: Callable[[str], None]
) -> None:
    report = await poison_workers(shared, tmp_path, goods=200, max_crashes=3, workers=workers)
    show(f"{shared.name}: {report}")
    assert report.violations == []
    assert report.completed == report.goods
    assert report.letter == "worker_lost"
    # Three crashes are allowed; the fourth makes it a dead letter.
    assert report.executions == 4
