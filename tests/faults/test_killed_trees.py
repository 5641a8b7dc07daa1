"""Workers killed with -9 while trees of jobs are under way: no child's end is lost, and each parent ends once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit.backends import Backend
from faultkit.felling import fell
from faultkit.length import FULL

KILLS, TREES = (150, 1500) if FULL else (4, 28)


@pytest.mark.xdist_group("faults")
@pytest.mark.timeout(900)
async def test_killed_workers_lose_no_childs_end(shared: Backend, tmp_path: Path, tell: Callable[[str], None]) -> None:
    report = await fell(shared, tmp_path, trees=TREES, kills=KILLS, seed=20240611)
    tell(f"{shared.name}: {report}")
    assert report.problems == []
    assert report.executions <= report.attempts
    assert report.orphaned >= KILLS / 4, "the workers were idle when they were killed: nothing was tested"
