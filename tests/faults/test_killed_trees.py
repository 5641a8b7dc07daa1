"""Workers killed with SIGKILL while job trees run: no end of a child is lost, and each parent ends once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit.backends import Backend
from faultkit.config import FULL
from faultkit.kill_trees import kill_tree_workers

KILLS, TREES = (150, 1500) if FULL else (4, 28)


@pytest.mark.xdist_group("faults")
@pytest.mark.timeout(900)
async def test_killed_workers_lose_no_end_of_a_child(
    shared: Backend, tmp_path: Path, show: Callable[[str], None]
) -> None:
    report = await kill_tree_workers(shared, tmp_path, trees=TREES, kills=KILLS, seed=20240611)
    show(f"{shared.name}: {report}")
    assert report.problems == []
    assert report.executions <= report.attempts
    assert report.orphaned >= KILLS / 4, "the workers were idle when they were killed: nothing was tested"
