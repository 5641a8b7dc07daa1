"""The figures that the specifications name, in the newest measurement of the benchmark that docs/performance.md shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

MEASURED = Path(__file__).parents[2] / "benchmarks" / "measured"


@pytest.mark.parametrize("store", ["sqlite", "redis", "postgres"])
@pytest.mark.parametrize(
    ("reading", "limit"),
    [
        pytest.param("append_p99_ms", 5, marks=pytest.mark.spec("003-14.1")),
        pytest.param("read_p99_ms", 10, marks=pytest.mark.spec("003-14.2")),
        pytest.param("subscribe_ms", 50, marks=pytest.mark.spec("003-14.3")),
        pytest.param("deliver_p99_ms", 100, marks=pytest.mark.spec("003-14.4")),
    ],
)
def test_a_measured_figure_is_within_its_limit(store: str, reading: str, limit: float) -> None:
    readings = json.loads((MEASURED / f"{store}.json").read_text("utf-8"))["scenarios"]["spec"]["readings"]["penstock"]
    assert readings
    assert all(0 < one[reading] < limit for one in readings)
