"""Two processes on one store in good weather: every attempt is recorded to its end, and nobody is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit.backends import Backend
from faultkit.racing import race_workers


@pytest.mark.xdist_group("faults")
async def test_two_processes_work_side_by_side(shared: Backend, tmp_path: Path, tell: Callable[[str], None]) -> None:
    report = await race_workers(shared, tmp_path, flows=300)
    tell(f"{shared.name}: {report}")
    assert report.violations == []
    assert report.refusals == 0
