"""Workers that stand still for longer than their leases, and a job that kills whoever runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit.backends import Backend
from faultkit.length import FULL
from faultkit.pausing import pause_workers
from faultkit.poisoning import poison_workers

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1200)]

PAUSES, JOBS = (200, 2000) if FULL else (4, 60)


async def test_a_worker_that_stood_still_records_nothing(
    shared: Backend, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    report = await pause_workers(shared, tmp_path, pauses=PAUSES, jobs=JOBS, seed=5)
    tell(f"{shared.name}: {report}")
    assert report.violations == []
    assert report.late_committed == 0
    assert report.late_fenced > 0, "no late commit was tried: nothing was tested"
    assert report.completed == report.jobs >= JOBS


@pytest.mark.parametrize("workers", [1, 2] if FULL else [1])
async def test_a_poison_job_is_dead_after_its_crashes_and_the_good_ones_are_done(
    shared: Backend, workers: int, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    report = await poison_workers(shared, tmp_path, goods=200, max_crashes=3, workers=workers)
    tell(f"{shared.name}: {report}")
    assert report.violations == []
    assert report.completed == report.goods
    assert report.letter == "worker_lost"
    # Three crashes are forgiven; the fourth is the end of it.
    assert report.executions == 4
