"""Two processes on one store without faults: every attempt is recorded to its end, and no call fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit.backends import Backend
from faultkit.race_workers import race_workers


@pytest.mark.xdist_group("faults")
async def test_two_processes_work_on_one_store(shared: Backend, tmp_path: Path, show: Callable[[str], None]) -> None:
    report = await race_workers(shared, tmp_path, flows=300)
    show(f"{shared.name}: {report}")
    assert report.violations == []
    assert report.refusals == 0
