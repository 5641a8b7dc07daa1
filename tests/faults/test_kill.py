"""Workers killed with SIGKILL at random moments while flows run: nothing is lost, stuck or done twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit.backends import Backend
from faultkit.config import FULL
from faultkit.kill_workers import kill_workers

KILLS, FLOWS = (1000, 10_000) if FULL else (10, 100)


@pytest.mark.xdist_group("faults")
@pytest.mark.timeout(1800)
async def test_killed_workers_lose_nothing(shared: Backend, tmp_path: Path, show: Callable[[str], None]) -> None:
    report = await kill_workers(shared, tmp_path, kills=KILLS, flows=FLOWS, seed=20240611)
    show(f"{shared.name}: {report}")
    assert report.violations == []
    assert report.kills == KILLS
    assert report.flows >= FLOWS
    assert report.executions <= report.steps
    assert report.orphaned >= KILLS / 4, "the workers were idle when they were killed: nothing was tested"


@pytest.mark.xdist_group("faults")
async def test_slow_workers_are_not_reported_as_stuck_runs(shared: Backend, tmp_path: Path) -> None:
    """No patience at all: every moment without progress looks like the end. Probes find that work goes on."""
    report = await kill_workers(shared, tmp_path, kills=3, flows=60, seed=3, recovery_timeout_s=0)
    assert report.violations == []
    assert report.probes, "the workers were never behind: nothing was tested"


@pytest.mark.xdist_group("faults")
async def test_without_probes_a_slow_machine_looks_like_stuck_runs(
    shared: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit alone is no proof: the same runs are clean with probes, and reported as stuck without them."""
    monkeypatch.setattr("faultkit.kill_workers.MAX_PROBES", 0)
    report = await kill_workers(shared, tmp_path, kills=3, flows=60, seed=3, recovery_timeout_s=0)
    assert report.violations
    assert any("is still running" in one for one in report.violations)
    assert not any("no job and no wait" in one for one in report.violations), "it is really stuck"
