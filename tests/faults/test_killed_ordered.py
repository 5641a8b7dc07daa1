"""Workers killed with SIGKILL while ordered jobs run: each key keeps its order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit import mutants
from faultkit.backends import Backend
from faultkit.config import FULL
from faultkit.kill_ordered import kill_ordered_workers

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]
KILLS, JOBS = (150, 3000) if FULL else (5, 100)


async def test_killed_workers_keep_the_order(shared: Backend, tmp_path: Path, show: Callable[[str], None]) -> None:
    report = await kill_ordered_workers(shared, tmp_path, jobs=JOBS, kills=KILLS, seed=20261117)
    show(f"{shared.name}: {report}")
    assert report.problems == []
    assert report.executions <= report.attempts
    assert report.failures > 0
    assert report.orphaned >= KILLS / 4, "the workers were idle when they were killed: nothing was tested"


@pytest.mark.parametrize("name", [name for name, _ in mutants.of("killed-ordered")])
async def test_kills_catch_a_broken_order(
    name: str, store_file: Backend, tmp_path: Path, show: Callable[[str], None]
) -> None:
    report = await kill_ordered_workers(store_file, tmp_path, jobs=60, kills=3, seed=7, mutant=name)
    assert report.problems, f"{name} survived"
    show(f"{name}: caught by {report.kills} kills, {len(report.problems)} problems: {report.problems[0]}")
